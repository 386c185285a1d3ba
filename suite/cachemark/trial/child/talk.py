"""The child's end of the talk with its parent: private descriptors, so that what a method reads or prints is no part of it."""

from __future__ import annotations

import fcntl
import os
import resource
import threading
import time
from collections.abc import Mapping
from typing import Any

from ...core.result import Status
from .. import frames
from ..measurement import Measurement, failed


class Talk:
    """Takes standard input and output away from everybody else: who reads finds the end of a file, and what is printed goes to standard
    error, which is the log."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._in, self._out = os.fdopen(_private(0), "rb"), os.fdopen(_private(1), "wb", buffering=0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._began = 0.0

    def request(self) -> bytes:
        """The request of the parent, as it was sent."""
        return self._in.readline()

    def end_with_parent(self) -> None:
        """From now on this process ends when its parent does: nothing more is asked, so the end of the pipe means that."""
        threading.Thread(target=self._wait_for_parent, daemon=True).start()

    def start(self, number: int) -> None:
        """A case begins."""
        self._began = time.perf_counter()
        self._say({"start": number})

    def alive(self, images: int = 0) -> None:
        """It takes long and goes on: so many ``images`` have been generated since the last time."""
        self._say({"alive": True, "images": images})

    def done(self, number: int, measured: Measurement) -> None:
        """It has ended. ``clock``: the seconds since it began, by the clock of this process, which the parent compares with its own."""
        clock = time.perf_counter() - self._began
        try:
            message = frames.framed({"done": number, "measurement": measured.to_json(), "clock": clock})
        except (TypeError, ValueError, RecursionError) as error:
            log = f"Its facts cannot be written as JSON: {str(error)[:200]}."
            message = frames.framed({"done": number, "measurement": failed(Status.ERROR, log).to_json(), "clock": clock})
        self._write(message)

    def leaves(self, number: int) -> None:
        """This process ends of itself: the next case needs another one."""
        self._say({"leaves": number})

    def _say(self, message: Mapping[str, Any]) -> None:
        self._write(frames.framed(message))

    def _write(self, message: bytes) -> None:
        if os.getpid() != self._process:  # a method has made a copy of us, which must not speak for us
            os._exit(1)
        unsent = memoryview(message)
        while unsent:
            unsent = unsent[self._out.write(unsent) :]

    def _wait_for_parent(self) -> None:
        self._in.read()
        os._exit(1)


def _private(number: int) -> int:
    """A copy of a descriptor far from where others are, which no program that is started inherits."""
    highest = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1024)
    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, highest * 3 // 4)
