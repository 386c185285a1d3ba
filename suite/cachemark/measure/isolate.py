"""The parent's side of a trial: start it, listen with a deadline, turn a dead or silent child into an outcome."""

from __future__ import annotations

import base64
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple

from ..result import Outcome, Status
from .plan import Planned
from .trial import request_json

LOG_BYTES = 4000  # of a dead child's standard error
STARTUP = 120.0  # seconds for a child to import torch and the plug-ins; no case has begun then, so its time is not counted


class Finished(NamedTuple):
    """A case that has ended, with its artifacts by file name."""

    outcome: Outcome
    artifacts: dict[str, bytes]


class Options(NamedTuple):
    """How trials are run. ``timeout`` is seconds without a word, counted from the start of a case or a sign of life. ``share`` makes
    that share of the quality images and nothing else: see :func:`~cachemark.measure.run.fill`. ``paired``: the cases are arms of pairs.
    ``python`` is another interpreter (empty: this one), ``code`` a folder that holds another copy of the package (empty: this one)."""

    timeout: float
    threads: int
    plugins: tuple[str, ...] = ()
    share: tuple[int, int] | None = None
    paired: bool = False
    python: str = ""
    code: str = ""

    @property
    def command(self) -> list[str]:
        """The interpreter with the option under which a file random.py in the user's folder, such as a plug-in, does not take the place
        of a module."""
        return [self.python or sys.executable, "-P"]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the child."""
        path = os.pathsep.join(filter(None, (self.code, os.environ.get("PYTHONPATH", ""))))
        code = {"PYTHONPATH": path} if self.code else {}
        return {**os.environ, "OMP_NUM_THREADS": str(self.threads), **code}


def run_trials(planned: Sequence[Planned], options: Options, started: Callable[[Planned], None]) -> Iterator[Finished]:
    """Run cases of one model in order, in one process as long as it lives.

    A child that dies or stays silent past the deadline ends the case it was in with a typed outcome; the cases behind it go
    on in a fresh process. ``started`` is called as each case begins.
    """
    left = list(planned)
    while left:
        with _Child(left, options) as child:
            for message in child.messages():
                if "start" in message:
                    started(left[0])
                elif "done" in message:
                    yield Finished(Outcome.from_json(message["outcome"]), _decoded(message["artifacts"]))
                    left.pop(0)
            if left:
                yield Finished(child.obituary(left.pop(0)), {})


class _Child:
    """A running trial."""

    def __init__(self, planned: Sequence[Planned], options: Options) -> None:
        self._timeout = options.timeout
        self._expected = len(planned)
        self._patience = max(STARTUP, options.timeout)
        self._silent = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        # A session of its own: Ctrl-C reaches the parent alone, which then ends the child.
        self._process = subprocess.Popen(
            [*options.command, "-m", "cachemark.measure.trial"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            text=True, start_new_session=True, env=options.environment,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        self._send(json.dumps(request_json(list(planned), list(options.plugins), options.threads, options.share, options.paired)))

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream:
                with suppress(OSError):  # the child is gone and so is the other end of its pipe
                    stream.close()

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the child says, until it has said everything, has ended, or has been silent for too long."""
        done = 0
        while done < self._expected:
            try:
                line = self._lines.get(timeout=self._patience)
            except queue.Empty:
                self._silent = True
                return
            if line is None:
                return
            message = json.loads(line)
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
        with suppress(BrokenPipeError):  # it died while starting; its silence says so
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


def _decoded(artifacts: dict[str, str]) -> dict[str, bytes]:
    return {name: base64.b64decode(text) for name, text in artifacts.items()}


def _cause(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    hint = " (the system ends processes so when memory runs out)" if -code == signal.SIGKILL else ""
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return f"by signal {name}{hint}"
