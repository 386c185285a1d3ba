"""The host of metrics of plug-ins: a process that has everything imported and nothing of a plug-in. For each case and metric there is a
copy of it, which imports the plug-in, is shown images in batches, and is gone when the case is judged."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from safetensors.torch import save

from ...core.outside_metrics import ENDED, HOST_ENDED, LATE
from ...metrics.image_metric import Shown
from ...plans import attempt

LENGTH, CODE = struct.Struct("<Q"), struct.Struct("<i")
LONGEST_ANSWER, LONGEST_REQUEST = 1 << 24, 1 << 16  # bytes
READY, END = b"r", b"e"  # from the host when it has imported everything; to it when a copy is no longer needed


class Fault(Exception):
    """A metric has no figure: which kind of fault, and more words."""

    def __init__(self, fault: str, said: str) -> None:
        super().__init__(fault, said)
        self.fault, self.said = fault, said


class MetricHost:
    """The host of this process, which has the same number of threads. It is started when it is first needed, again where something has
    ended it, and ends with this object, or before by :meth:`end`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._ends: weakref.finalize[Any, Any] | None = None

    def end(self) -> None:
        """End the host now: an error may hold this object for longer than its process is wanted."""
        if self._ends is not None:
            self._ends()
        self._line = self._process = self._ends = None

    def start(self) -> socket.socket:
        """Start the host unless it runs, and wait until it has imported everything. Returns the line to it. Raises Fault where it does not
        come to that in time."""
        if self._line is not None and self._process is not None and self._process.poll() is None:
            return self._line
        here, there = socket.socketpair()
        command = [sys.executable, "-P", "-m", "cachemark.trial.child.metric_process", str(torch.get_num_threads())]
        process = subprocess.Popen(command, stdin=there.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        there.close()
        self._ends = weakref.finalize(self, _end, here, process)
        try:
            _read(here.fileno(), len(READY), time.monotonic() + attempt.limit())
        except EOFError:
            raise Fault(HOST_ENDED, f"before it was ready, {attempt.ended(process.wait())}") from None
        self._line, self._process = here, process
        return here

    @contextmanager
    def measuring(self, file: str, name: str) -> Iterator[Callable[[Shown], list[float]]]:
        """A copy of the host that has one metric of a plug-in imported, as what it answers for some images. It is gone, with all that it
        has started, when the block ends. Raises Fault where it has no figures."""
        line = self.start()
        images, to = os.pipe()
        back, answers = os.pipe()
        os.set_blocking(to, False)
        codes: list[int] = []

        def asked(shown: Shown) -> list[float]:
            packed, end = _packed(shown), time.monotonic() + attempt.limit()
            told: dict[str, Any] = {}
            try:
                _send(to, packed, end)
                told = json.loads(_answer(back, end))
            except (BrokenPipeError, EOFError):
                codes.append(self._ended(line))
                raise self._fault_of(codes[0]) from None
            except ValueError:
                raise Fault("no figures", "what came back is not an answer") from None
            if "fault" in told:
                raise Fault(str(told["fault"]), str(told.get("said", "")))
            return [float(value) for value in told["values"]]

        try:
            with suppress(OSError):  # of a host that has just ended: then nobody answers
                socket.send_fds(line, [json.dumps([file, name]).encode()], [images, answers])
            os.close(images)
            os.close(answers)
            yield asked
        finally:
            os.close(to)
            os.close(back)
            if not codes:
                self._ended(line)

    def _fault_of(self, code: int) -> Fault:
        """The fault of a copy that has ended, with this exit code where its host still tells of it."""
        if self._line is not None or self._process is None:
            return Fault(ENDED, attempt.ended(code))
        own = self._process.poll()
        self._process.kill()
        said = "it tells nothing any more" if own is None else attempt.ended(own)
        return Fault(HOST_ENDED, f"{said}; whether the metric did that is not known")

    def _ended(self, line: socket.socket) -> int:
        """End the copy that there is, and return its exit code, that of its own end where it had come to that. A host that does not tell is
        given up."""
        try:
            line.send(END)
            return int(CODE.unpack(_read(line.fileno(), CODE.size, time.monotonic() + attempt.limit()))[0])
        except (OSError, EOFError, Fault):
            self._line = None
            return 1


def _end(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    line.close()  # for a host that is the end
    process.wait()


def _packed(shown: Shown) -> bytes:
    names = ("images", "reference", "tokens", "reference_tokens")
    tensors = {name: getattr(shown, name).clone(memory_format=torch.contiguous_format) for name in names}
    packed = save(tensors, {"labels": json.dumps(list(shown.labels)), "seeds": json.dumps(list(shown.seeds))})
    return LENGTH.pack(len(packed)) + packed


def _send(to: int, data: bytes, end: float) -> None:
    left = memoryview(data)
    while left:
        if not select.select([], [to], [], max(0.0, end - time.monotonic()))[1]:
            raise Fault(LATE, f"it took no images for {attempt.limit():g} s; {attempt.VARIABLE} sets other seconds")
        left = left[os.write(to, left[: 1 << 16]) :]


def _answer(back: int, end: float) -> bytes:
    (count,) = LENGTH.unpack(_read(back, LENGTH.size, end))
    if count > LONGEST_ANSWER:
        raise ValueError(f"an answer of {count} bytes")
    return _read(back, count, end)


def _read(back: int, count: int, end: float) -> bytes:
    found = b""
    while len(found) < count:
        if not select.select([back], [], [], max(0.0, end - time.monotonic()))[0]:
            raise Fault(LATE, f"it did not answer within {attempt.limit():g} s; {attempt.VARIABLE} sets other seconds")
        if not (part := os.read(back, min(count - len(found), 1 << 16))):
            raise EOFError
        found += part
    return found
