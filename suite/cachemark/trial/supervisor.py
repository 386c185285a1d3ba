"""Parent side of a trial: start the worker, read its messages, turn death or silence into an outcome."""

from __future__ import annotations

import itertools
import json
import os
import platform
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol
from uuid import uuid4

from ..core.facts import PlaceFacts
from ..core.result import Outcome, Status
from ..machine.monitor import Watch
from ..plans.planned import Prepared
from .measurement import LONGEST, BadMessage, Measurement, failed, outcome_of, read_message
from .request import GO_ON, TrialRequest

_STARTED = itertools.count(1)  # children of this process
MARK = "CACHEMARK_TRIAL"  # environment variable by which the processes of a worker are known
LAST = 4000  # characters of a dead child's standard error
ENDING = 10.0  # seconds for the pipes of a child that has ended to be read
STARTUP = 120.0  # seconds for a child to import torch and the plug-ins; this is before the first case, so no case's time includes it

Started = Callable[[Prepared], None]
Advanced = Callable[[Prepared, int], None]


class Finished(NamedTuple):
    """Finished case with its artifacts by file name.

    ``invalidated``: the device disturbed it, so it may be measured again; ``lost``: the device is gone. ``process`` identifies the process
    that ran the case; empty if none did.
    """

    outcome: Outcome
    artifacts: dict[str, bytes]
    invalidated: bool = False
    lost: bool = False
    process: str = ""


class Admit(Protocol):
    """Return why a case may not start, in a new process or in a ``running`` one; empty if it may."""

    def __call__(self, planned: Prepared, running: bool = False, /) -> str: ...


def always(planned: Prepared, running: bool = False) -> str:
    """Admit every case."""
    return ""


def unheard(planned: Prepared, images: int) -> None:
    """Ignore progress."""


def run_trials(
    planned: Sequence[Prepared], request: TrialRequest, started: Started, *, watch: Watch | None = None, admit: Admit = always,
    advanced: Advanced = unheard,
) -> Generator[Finished | None]:
    """Run cases of one model in order, in one process as long as it lives.

    A worker that dies or stays silent past the deadline ends its case with a typed outcome; later cases run in a new process. ``started``
    is called when a case starts, ``advanced`` with the number of images since its last call. ``watch`` observes the device and may
    invalidate a case. If ``admit`` returns a reason, that case and all later ones are not reached. If ``request.pauses``, yield None after
    each generation; the worker waits until the reader goes on.
    """
    remaining = list(planned)
    while remaining:
        if reason := admit(remaining[0]):
            yield from (unmeasured(case, Status.NOT_REACHED, reason) for case in remaining)
            return
        if watch is not None and (intruders := watch.intruders()):
            log = f"The device was not free: process {', '.join(map(str, sorted(intruders)))} computes on it."
            yield unmeasured(remaining.pop(0), Status.CONTENDED, log)._replace(invalidated=True)
            continue
        built_in = list(itertools.takewhile(lambda case: not case.runs_plugin, remaining))
        shared = built_in or remaining[:1]  # a case with plug-in code runs in a separate process
        with _Child(replace(request, cases=tuple(shared))) as child:
            for finished in _heard(child, shared, started, watch, admit, advanced):
                if finished is not None:
                    remaining.pop(0)
                yield finished


def _heard(
    child: _Child, remaining: list[Prepared], started: Started, watch: Watch | None, admit: Admit, advanced: Advanced,
) -> Iterator[Finished | None]:
    """Yield finished cases, removed from ``remaining``, until the worker ends; None while it waits."""
    if watch is not None:
        watch.child = child.pid
    fault: BadMessage | Silence | None = None
    try:
        for message in child.messages():
            if "start" in message:
                started(remaining[0])
                if watch is not None:
                    watch.begin()
            elif "measurement" in message:
                measured, planned = message["measurement"], remaining.pop(0)
                yield _finished(planned, measured, child, watch)
                unfit = needs_new_process(measured.status, planned.case.device_class, child.memory_cap)
                if remaining and (unfit or admit(remaining[0], True)):
                    return
            elif images := message.get("images"):
                if watch is not None:
                    watch.read(prompted=True)  # at the end of a generation, when its energy is known
                advanced(remaining[0], images)
            elif "waits" in message:
                yield None
                child.go_on()
    except (BadMessage, Silence) as error:
        fault = error
    if remaining:
        yield _finished(remaining.pop(0), child.obituary(fault), child, watch)


def needs_new_process(status: Status, device: str, memory_cap: int) -> bool:
    """Return whether the CUDA context, after an error, or memory, after OOM, may be unusable."""
    return status in (Status.OOM, Status.ERROR) and (device != "cpu" or bool(memory_cap))


def unmeasured(planned: Prepared, status: Status, log: str) -> Finished:
    """Return a case that ended without a process."""
    return Finished(outcome_of(planned, failed(status, log)), {})


def _finished(planned: Prepared, measured: Measurement, child: _Child, watch: Watch | None) -> Finished:
    """Return a finished case with its device observations; invalidated if the device disturbed it."""
    place = PlaceFacts()
    fault = None
    if watch is not None:
        readings, fault = watch.end()
        place = replace(place, device=readings)
        if measured.spans:
            measured = measured.with_energy(watch.energy(measured.spans), planned.case.batch)
    outcome = outcome_of(planned, measured, place, fault)
    artifacts = dict(measured.artifacts) if outcome.ok else {}
    return Finished(outcome, artifacts, fault is not None, fault is not None and fault.status is Status.ERROR, child.name)


class Silence(Exception):
    """A worker sent no message in time."""


class _Child:
    """Running worker process."""

    def __init__(self, request: TrialRequest) -> None:
        self._timeout, self.memory_cap = request.timeout, request.memory_cap
        self._expected = len(request.cases)
        self._patience = max(STARTUP, request.timeout)
        self._tail = b""
        self._mark = uuid4().hex
        # In a new session, Ctrl-C reaches the parent alone, which then ends the child and all processes of its group.
        self._process = subprocess.Popen(
            [*request.command, "-m", "cachemark.trial.child.main"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, env={**request.environment, MARK: self._mark},
        )
        self.name = f"{platform.node()} {os.getpid()} {next(_STARTED)}"
        self._messages: queue.Queue[bytes | None] = queue.Queue()
        request_pipe, messages, errors = (_detached(stream) for stream in (self._process.stdin, self._process.stdout, self._process.stderr))
        self._request = Connection(request_pipe, readable=False)
        content = json.dumps(request.to_json()).encode()
        # Threads: a child that does not read, or that writes half a message, must not block its parent.
        threading.Thread(target=self._send, args=(content,), daemon=True).start()
        self._listener = threading.Thread(target=self._listen, args=(Connection(messages, writable=False),), daemon=True)
        self._listener.start()
        self._reader = threading.Thread(target=self._log, args=(errors,), daemon=True)
        self._reader.start()
        threading.Thread(target=self._note_end, daemon=True).start()

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._request.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield messages until the worker has finished or died. Raises Silence or BadMessage."""
        done = 0
        while done < self._expected:
            try:
                content = self._messages.get(timeout=self._patience)
            except queue.Empty:
                raise Silence from None
            if content is None:
                return
            message = read_message(content)
            done, self._patience = done + ("measurement" in message), self._timeout
            yield message

    def go_on(self) -> None:
        """Let a worker that waits continue."""
        self._send(GO_ON)

    def obituary(self, fault: BadMessage | Silence | None) -> Measurement:
        """Return the measurement of the case during which the worker died or was killed for a ``fault``."""
        if fault is None:
            reason = f"The process ended {_cause(self._process.wait())}."
        elif isinstance(fault, Silence):
            reason = f"No outcome within {self._patience:g} s; the process was ended."
        else:
            reason = f"It sent a malformed message ({fault}); the process was ended."
        self._kill()
        self._reader.join(timeout=ENDING)
        tail = self._tail.decode(errors="replace")[-LAST:].strip()
        return failed(Status.TIMEOUT if isinstance(fault, Silence) else Status.ERROR, f"{reason}\n{tail}".strip())

    def _send(self, content: bytes) -> None:
        with suppress(OSError):  # it ended before it read the request, see its exit code
            self._request.send_bytes(content)

    def _listen(self, connection: Connection) -> None:
        with connection, suppress(EOFError, OSError):  # the end, or a malformed message; the rest is not read
            while True:
                self._messages.put(connection.recv_bytes(LONGEST))

    def _note_end(self) -> None:
        """Add the end of the process to the messages, after the last one that it sent."""
        self._process.wait()
        self._listener.join(timeout=ENDING)  # a remaining child process may keep the pipe open
        self._messages.put(None)

    def _log(self, descriptor: int) -> None:
        """Collect the end of the worker's output."""
        with suppress(OSError):
            while part := os.read(descriptor, 1 << 16):
                self._tail = (self._tail + part)[-4 * LAST :]  # bytes, at most four per character
        os.close(descriptor)

    def _kill(self) -> None:
        """End the worker, its group, and processes that left it, known by a mark in their environment."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for wait in (0.0, 0.02):  # the environment of a process that starts a program is empty for a moment
            time.sleep(wait)
            for folder in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it ended, or is another user's
                    if f"{MARK}={self._mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                        os.kill(int(folder.name), signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # while Python ends, the thread that waits for it is gone, and keeps its lock
            self._process.wait(timeout=ENDING)


def _detached(stream: IO[bytes] | None) -> int:
    """Return a descriptor of a stream of a process, which the caller closes."""
    assert stream is not None
    with stream:
        return os.dup(stream.fileno())


def _cause(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    hint = " (the system ends processes so when memory runs out)" if -code == signal.SIGKILL else ""
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return f"by signal {name}{hint}"
