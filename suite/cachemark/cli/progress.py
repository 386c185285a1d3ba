"""Progress of an operation on standard error that takes seconds or minutes."""

from __future__ import annotations

import time

from .options import say

TICK = 2.0  # seconds between two lines


class Ticker:
    """Progress of a long operation: a line every few seconds."""

    def __init__(self) -> None:
        self._last_line = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Print how many of ``total`` are done, unless a line was printed a moment ago."""
        if time.monotonic() - self._last_line >= TICK:
            self._last_line = time.monotonic()
            say(f"  {done} of {total} {what}", err=True)
