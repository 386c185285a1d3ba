"""Trials: cases run in processes of their own, watched from outside."""
