"""Tests of one trial: its child process, its supervisor, and what it measures."""
