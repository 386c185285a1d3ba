"""A progress bar on standard error, for work of this process that takes more than a few seconds."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import Any

import click

LONG = 2.0  # seconds after which the bar is shown


class ProgressBar:
    """A bar on standard error, if that is a terminal and the work is long.

    A context manager, which ends its line.
    """

    def __init__(self, title: str, steps: int) -> None:
        self._title, self._steps, self._began, self._stack = title, steps, time.monotonic(), ExitStack()
        self._bar: Any = None
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def reach(self, step: int) -> None:
        """Show that so many steps are done."""
        if not self._shown:
            return
        if self._bar is None and time.monotonic() - self._began > LONG:
            self._bar = self._stack.enter_context(click.progressbar(
                length=self._steps, label=self._title, file=sys.stderr, update_min_steps=max(1, self._steps // 100)))
            self._done = 0
        if self._bar is not None:
            self._bar.update(step - self._done)
            self._done = step
