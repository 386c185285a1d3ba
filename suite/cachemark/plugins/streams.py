"""Standard streams while code of a plug-in runs in the process of a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress


@contextmanager
def prints_apart() -> Iterator[None]:
    """Send what is printed inside to standard error, and undo closed or replaced standard streams at the end.

    A print is no part of a command's JSON."""
    streams = sys.stdout, sys.stderr
    with suppress(OSError, ValueError, AttributeError):
        streams[0].flush()
    saved = [os.dup(number) for number in (1, 2)]
    os.dup2(2, 1)
    try:
        with redirect_stdout(os.fdopen(2, "w", 1, encoding="utf-8", errors="replace", closefd=False)):
            yield
    finally:
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        sys.stdout, sys.stderr = streams
