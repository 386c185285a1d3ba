"""A trial: one fresh process that runs cases of one model and reports each as a message to its parent.

Run as ``python -m cachemark.trial.child.main``. A case that runs code of a plug-in has a process of its own
(:func:`cachemark.trial.supervisor.run_trials`), so that effects of this code end with the process. The trial ends with its parent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import torch

from ...cache.kernels.check import noting
from ...core.errors import BadBudget, BadParameter, BadPlugin, CachemarkError, Unsupported
from ...core.facts import PlaceFacts
from ...core.result import Status
from ...machine.affinity import pin
from ...machine.memory import cap, exhausted
from ...plans.planned import Prepared
from ...plugins import loading as plugins
from ..measurement import Measurement, bounded_log, failed
from ..request import Task, TrialRequest
from .bench import Bench, NotFinite
from .measure import fill, probe, run_case, run_side, see_side

Work = Callable[[Prepared, Bench], Measurement]


def main() -> None:
    """Entry of the child process."""
    parent = _Parent()
    try:
        request = TrialRequest.from_json(parent.request)
    except CachemarkError as error:
        sys.exit(str(error))
    request.take_hashes()
    pin(request.cpus)
    torch.set_num_threads(request.threads)
    if request.memory_cap:
        cap(request.cases[0].case.device_class, request.memory_cap)
    works: dict[Task, Work] = {
        Task.CASE: run_case, Task.TIMES: run_side, Task.IMAGES: see_side, Task.PROBE: probe,
        Task.FEATURES: partial(fill, share=request.share),
    }
    trial = _Trial(request, works[request.task], partial(parent.advanced, pauses=request.pauses))
    for planned in request.cases:
        parent.send({"start": planned.case.key})
        measured = trial.run(planned)
        try:
            parent.send({"measurement": measured.to_json()})
        except (TypeError, ValueError, RecursionError) as error:
            log = f"Its facts cannot be written as JSON: {str(error)[:200]}."
            parent.send({"measurement": failed(Status.ERROR, log).to_json()})


class _Parent:
    """The connection to the parent process, by the standard streams that the parent opened.

    Other code that reads standard input gets an empty file, and its output goes to standard error, which is the log."""

    def __init__(self) -> None:
        self._in, self._out = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        self.request: dict[str, Any] = json.loads(self._in.recv_bytes())
        self._turns = threading.Semaphore(0)
        threading.Thread(target=self._follow_parent, daemon=True).start()

    def _follow_parent(self) -> None:
        """End this process and its children when the parent closes the pipe; its messages end pauses."""
        with suppress(EOFError):
            while True:
                self._in.recv_bytes()
                self._turns.release()
        os.killpg(0, signal.SIGKILL)

    def advanced(self, images: int, pauses: bool) -> None:
        """Send the number of new images; wait until the parent answers if the worker ``pauses``."""
        self.send({"images": images})
        if pauses:
            self.send({"waits": True})
            self._turns.acquire()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises ValueError or TypeError if it is not JSON, before anything is sent."""
        self._out.send_bytes(json.dumps(message, allow_nan=False).encode())


@dataclass
class _Trial:
    """The cases of one process, one after the other."""

    request: TrialRequest
    work: Work
    alive: Callable[[int], None]
    bench: Bench | None = None

    def run(self, planned: Prepared) -> Measurement:
        """Return the measurement of a case."""
        seconds = 0.0
        try:
            self._import(planned.needs)
            self.bench = self.bench or Bench.load(planned, self.alive, self.request.plugins)
            if planned.unsupported_reason:
                raise Unsupported(planned.unsupported_reason)
            began = perf_counter()
            with noting() as notes:
                measured = self.work(planned, self.bench)
            measured = replace(measured, facts=measured.facts.noted(*sorted(notes)))
            seconds = perf_counter() - began if measured.status is Status.OK else 0.0
        except BaseException as error:  # SystemExit among them: every failure of the code under test is an outcome
            measured = failure(error)
        place = PlaceFacts(threads=torch.get_num_threads(), cpus=list(self.request.cpus), memory_cap=self.request.memory_cap or None)
        return replace(measured, seconds=seconds, facts=measured.facts | place)

    def _import(self, digests: Sequence[str]) -> None:
        """Import these plug-ins in the given order."""
        files = {plugins.read(file).digest: file for file in self.request.plugins} if digests else {}
        if gone := set(digests) - files.keys():
            raise BadPlugin(f"A plug-in has changed since the run started: {len(gone)} of {', '.join(self.request.plugins)}.",
                            remedy="Leave the file alone while it is measured, and run the same command again.")
        for digest, file in files.items():
            if digest in digests:
                plugins.load(file)


def failure(error: BaseException) -> Measurement:
    """Return the measurement of a case that has raised an error."""
    if isinstance(error, Unsupported | BadBudget | BadParameter):
        status, log = Status.UNSUPPORTED, str(error)
    elif isinstance(error, NotFinite):
        status, log = Status.NAN_OUTPUT, str(error)
    elif isinstance(error, MemoryError | torch.OutOfMemoryError):
        status, log = Status.OOM, f"{type(error).__name__}: {error}"
    elif isinstance(error, CachemarkError):
        status, log = Status.ERROR, str(error)
    else:
        log = "".join(traceback.format_exception(error))
        status = Status.OOM if exhausted(error) else Status.ERROR
    return failed(status, bounded_log(log).strip() or "No reason was given.")


if __name__ == "__main__":
    main()
