"""Judging a run against an accepted baseline."""

from .gate import Comparison, compare

__all__ = ["Comparison", "compare"]
