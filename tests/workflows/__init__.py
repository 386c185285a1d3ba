"""Tests of whole runs, comparisons and searches."""
