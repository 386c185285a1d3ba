"""Tests of one trial: its child process, its supervisor, and its measurements."""
