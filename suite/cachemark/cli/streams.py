"""Standard output and standard error as commands see them: no secret passes."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from ..core.secrets import mask


class MaskedStream:
    """A stream of text in which stars stand in place of every secret; all else is that of the stream behind it, but for its bytes, past
    which nothing would be looked at."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(mask(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self._stream, name)


def _somewhere(stream: TextIO | None) -> TextIO:
    """The stream, or one that leads nowhere where this process was started without. Its descriptor, the lowest that is free, is so no
    file's of ours, nor of a process that we start."""
    if stream is not None:
        return stream
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.set_inheritable(nowhere, True)
    return os.fdopen(nowhere, "w", encoding="utf-8")


def _unlimited(stream: TextIO) -> TextIO:
    """The stream, with UTF-8 in place of ASCII, in which half of our signs cannot be written. click would see to it if it had the bytes."""
    if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name == "ascii":
        stream.reconfigure(encoding="utf-8", errors=stream.errors)
    return stream


@contextmanager
def masked_streams() -> Iterator[None]:
    """Within this block whatever is printed, by whichever library, goes through :class:`MaskedStream`."""
    own = sys.stdout, sys.stderr
    ours = sys.stdout, sys.stderr = [cast(TextIO, MaskedStream(_unlimited(_somewhere(stream)))) for stream in own]
    try:
        yield
    finally:
        if [sys.stdout, sys.stderr] == ours:  # else click has put others there, because nobody reads any more
            sys.stdout, sys.stderr = own
