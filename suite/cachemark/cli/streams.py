"""Standard output and standard error for commands: open, and able to encode all characters."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


def _somewhere(stream: TextIO | None) -> TextIO:
    """Return the stream, or /dev/null if the process has none.

    It takes the lowest free descriptor, so that no file of ours gets that one.
    """
    if stream is not None:
        return stream
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.set_inheritable(nowhere, True)
    return os.fdopen(nowhere, "w", encoding="utf-8")


def _unlimited(stream: TextIO) -> TextIO:
    """Return the stream with UTF-8 in place of ASCII."""
    if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name == "ascii":
        stream.reconfigure(encoding="utf-8", errors=stream.errors)
    return stream


@contextmanager
def safe_streams() -> Iterator[None]:
    """Make both streams open and able to encode all characters within the block."""
    own = sys.stdout, sys.stderr
    ours = sys.stdout, sys.stderr = [_unlimited(_somewhere(stream)) for stream in own]
    try:
        yield
    finally:
        if [sys.stdout, sys.stderr] == ours:  # else click has put others there, because nobody reads any more
            sys.stdout, sys.stderr = own
