"""The parent's side of a trial: start it, listen with a deadline, turn a dead or silent child into an outcome."""

from __future__ import annotations

import base64
import itertools
import json
import os
import platform
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO, Any, NamedTuple, Protocol

from ..core.result import Outcome, Status
from ..machine.monitor import Watch
from ..plans.expand import Planned
from .request import TrialRequest

_STARTED = itertools.count(1)  # children of this process
LOG_BYTES = 4000  # of a dead child's standard error
STARTUP = 120.0  # seconds for a child to import torch and the plug-ins; no case has begun then, so its time is not counted

Started = Callable[[Planned], None]


class Finished(NamedTuple):
    """A case that has ended, with its artifacts by file name. ``invalidated``: by the device and not by the case, so that it may be
    measured again; ``lost``: the device is gone. ``process`` is the same of all cases that ran in one process, and of no others; empty
    where none ran."""

    outcome: Outcome
    artifacts: dict[str, bytes]
    invalidated: bool = False
    lost: bool = False
    process: str = ""


class Admit(Protocol):
    """The reason why a case may not begin, in a process that must be started or in one that is ``running`` already; or nothing."""

    def __call__(self, planned: Planned, running: bool = False, /) -> str: ...


def always(planned: Planned, running: bool = False) -> str:
    """Every case may begin."""
    return ""


def run_trials(
    planned: Sequence[Planned], request: TrialRequest, started: Started, *, watch: Watch | None = None, admit: Admit = always
) -> Iterator[Finished]:
    """Run cases of one model in order as ``request`` says, in one process as long as it lives.

    A child that dies or stays silent past the deadline ends the case it was in with a typed outcome; the cases behind it go
    on in a fresh process. ``started`` is called as each case begins. ``watch`` sees the device meanwhile: a case that it invalidates ends
    as that. ``admit`` says why a case may not begin any more, or nothing; then it is not reached, and neither is what stands behind it.
    """
    left = list(planned)
    while left:
        if reason := admit(left[0]):
            yield from (Finished(Outcome(case.case, Status.NOT_REACHED, log=reason), {}) for case in left)
            return
        if watch is not None and (others := watch.intruders()):
            yield _contended(left.pop(0), others)
            continue
        with _Child(replace(request, cases=tuple(left))) as child:
            yield from _heard(child, left, started, watch, admit)


def _heard(child: _Child, left: list[Planned], started: Started, watch: Watch | None, admit: Admit) -> Iterator[Finished]:
    """Cases that a child finishes; each is taken off ``left``. Ends with the child, or before a case that may not begin."""
    if watch is not None:
        watch.child = child.pid
    for message in child.messages():
        if "start" in message:
            started(left[0])
            if watch is not None:
                watch.begin()
        elif "done" in message:
            artifacts = {name: base64.b64decode(text) for name, text in message["artifacts"].items()}
            yield _watched(Finished(Outcome.from_json(message["outcome"]), artifacts, process=child.name), watch)
            left.pop(0)
            if left and admit(left[0], True):
                return
        elif "leaves" in message:  # of itself, because of what the last case left behind
            return
    if left:
        yield _watched(Finished(child.obituary(left.pop(0)), {}, process=child.name), watch)


def _contended(planned: Planned, others: frozenset[int]) -> Finished:
    log = f"The device was not free: process {', '.join(map(str, sorted(others)))} computes on it."
    return Finished(Outcome(planned.case, Status.CONTENDED, log=log), {}, invalidated=True)


def _watched(finished: Finished, watch: Watch | None) -> Finished:
    """With what the device did meanwhile; invalidated where that does not let it stand."""
    if watch is None:
        return finished
    (observed, fault), outcome = watch.end(), finished.outcome
    facts = {**outcome.facts, "device": observed}
    if fault is None:
        return finished._replace(outcome=replace(outcome, facts=facts))
    log = f"{fault.reason}\n{outcome.log}".strip()
    ended = Outcome(outcome.case, fault.status, log=log, seconds=outcome.seconds, facts=facts)
    return Finished(ended, {}, invalidated=True, lost=fault.status is Status.ERROR, process=finished.process)


class _Child:
    """A running trial."""

    def __init__(self, request: TrialRequest) -> None:
        self._timeout = request.timeout
        self._expected = len(request.cases)
        self._patience = max(STARTUP, request.timeout)
        self._silent = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        # A session of its own: Ctrl-C reaches the parent alone, which then ends the child.
        self._process = subprocess.Popen(
            [*request.command, "-m", "cachemark.trial.child.main"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            text=True, start_new_session=True, env=request.environment,
        )
        self.name = f"{platform.node()} {os.getpid()} {next(_STARTED)}"
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        # In a thread: a child that never reads must not hold us beyond its time.
        threading.Thread(target=self._send, args=(json.dumps(request.to_json()),), daemon=True).start()

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream:
                with suppress(OSError):  # the child is gone and so is the other end of its pipe
                    stream.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def messages(self) -> Iterator[dict[str, Any]]:
        """Messages of the child, until it has said everything, has ended, or has been silent for too long."""
        done = 0
        while done < self._expected:
            try:
                line = self._lines.get(timeout=self._patience)
            except queue.Empty:
                self._silent = True
                return
            if line is None:
                return
            try:
                message = json.loads(line)
            except ValueError:  # it was killed while it wrote this line
                self._kill()
                return
            done, self._patience = done + ("done" in message), self._timeout
            yield message

    def obituary(self, planned: Planned) -> Outcome:
        """The outcome of the case in which the child ended."""
        code = None if self._silent else self._process.wait()
        self._kill()
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - LOG_BYTES))
        tail = self._errors.read().decode(errors="replace").strip()
        if code is None:
            silence = f"No outcome within {self._patience:g} s; the process was ended."
            return Outcome(planned.case, Status.TIMEOUT, log=f"{silence}\n{tail}".strip())
        return Outcome(planned.case, Status.ERROR, log=f"The process ended {_cause(code)}.\n{tail}".strip())

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it died while starting, or was ended because it did not read; its silence says so
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()

    def _listen(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.put(line)
        self._lines.put(None)

    def _kill(self) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):  # the group: what the method itself has started ends too
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _cause(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    hint = " (the system ends processes so when memory runs out)" if -code == signal.SIGKILL else ""
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return f"by signal {name}{hint}"
