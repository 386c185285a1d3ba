"""Standard streams, folder and umask while code of a plug-in runs in the process of a command."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from ..core.files import umask
from ..core.wording import printed


class _Relay(io.RawIOBase):
    """Writes text of a plug-in to a stream, without control characters and without CI commands at the start of its lines."""

    def __init__(self, to: TextIO) -> None:
        self._to = to

    def write(self, data: Any, /) -> int:
        self._to.write("\n".join(map(printed, bytes(data).decode("utf-8", "replace").split("\n"))))
        self._to.flush()
        return len(data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._to.fileno()

    def isatty(self) -> bool:
        return self._to.isatty()


class _Lines(io.TextIOWrapper):
    """A standard stream in place of another one, ``own``."""

    own: TextIO

    def __init__(self, to: TextIO, own: TextIO) -> None:
        super().__init__(io.BufferedWriter(_Relay(to)), "utf-8", "replace", line_buffering=True)
        self.own = own


def own_stderr() -> TextIO:
    """Return standard error as it is for the command's own lines and bars, also while it is another one for a plug-in."""
    return getattr(sys.stderr, "own", sys.stderr)


@contextmanager
def place_kept() -> Iterator[None]:
    """Restore folder and umask at the end: outputs of a command go where it was started, with the rights of its user."""
    folder, mask = os.open(".", os.O_PATH), umask()
    try:
        yield
    finally:
        os.umask(mask)
        with suppress(OSError):  # a plug-in may close all descriptors
            os.fchdir(folder)
            os.close(folder)


@contextmanager
def prints_apart() -> Iterator[None]:
    """Send what is printed inside to standard error as plain lines, and undo closed or replaced standard streams at the end.

    A print is no part of a command's JSON, and sets no color or title of a terminal."""
    streams, errors = (sys.stdout, sys.stderr), own_stderr()
    with suppress(OSError, ValueError, AttributeError):
        streams[0].flush()
    saved = [os.dup(number) for number in (1, 2)]
    os.dup2(2, 1)
    sys.stdout = out = _Lines(os.fdopen(2, "w", encoding="utf-8", errors="replace", closefd=False), streams[0])
    sys.stderr = err = _Lines(errors, errors)
    try:
        yield
    finally:
        for stream in (out, err):
            with suppress(OSError, ValueError):  # a plug-in may close them
                stream.flush()
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        sys.stdout, sys.stderr = streams
