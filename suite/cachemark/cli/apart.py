"""Prints of a plug-in that runs in the process of a command, kept apart from the command's own lines.

A plug-in that prints a line like a result or like the summary could otherwise hide a failure, or make the output invalid JSON.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from typing import TextIO

from ..core.wording import printed

KEPT = 10_000  # bytes of the prints between two calls of `taken`
SHOWN, WIDTH = 3, 200  # lines, and characters of a line


class Apart:
    """Context manager: what anything else prints goes to a file; ``out`` and ``err`` are this process's own streams.

    A file, because a pipe would block code that prints much without releasing the interpreter."""

    out: TextIO
    err: TextIO

    def __enter__(self) -> Apart:
        self._streams = sys.stdout, sys.stderr
        for stream in self._streams:
            stream.flush()
        self._own, self._file = (os.dup(1), os.dup(2)), tempfile.TemporaryFile()
        for number in (1, 2):
            os.dup2(self._file.fileno(), number)
        self.out, self.err = (self._copy(stream, number) for stream, number in zip(self._streams, (1, 2), strict=True))
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, encoding="utf-8", errors="replace", closefd=False) for number in (1, 2))
        return self

    def _copy(self, stream: TextIO, number: int) -> TextIO:
        """Return a stream to where ``stream`` wrote; one that is not the descriptor ``number``, as in a test, stays itself."""
        with suppress(OSError, ValueError, AttributeError):
            if stream.fileno() == number:
                return os.fdopen(self._own[number - 1], "w", 1, encoding=stream.encoding, errors=stream.errors, closefd=False)
        return stream

    def taken(self) -> list[str]:
        """Return what was printed since the last call as lines that look like no line of the command, and forget it."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        size = os.fstat(self._file.fileno()).st_size
        lines = [line for line in os.pread(self._file.fileno(), KEPT, 0).decode("utf-8", "replace").splitlines() if line.strip()]
        self._file.truncate(0)
        os.lseek(self._file.fileno(), 0, os.SEEK_SET)  # of all its descriptors
        more = [f"  | … {size:,} bytes in all"] if size > KEPT or len(lines) > SHOWN else []
        return [f"  | {printed(line, WIDTH)}" for line in lines[:SHOWN]] + more

    def __exit__(self, *_: object) -> None:
        left = self.taken()
        for own, number in zip(self._own, (1, 2), strict=True):
            os.dup2(own, number)
            os.close(own)
        self._file.close()
        sys.stdout, sys.stderr = self._streams
        for line in left:
            print(line, file=sys.stderr)
