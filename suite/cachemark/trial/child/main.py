"""A trial: one fresh process that runs cases of one model and reports each as a message to its parent.

A case that runs code of a plug-in has a process of its own (:func:`cachemark.trial.supervisor.run_trials`): what that code does to the
process ends with it. When its parent dies, the pipe closes and the trial ends.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ...core.errors import BadBudget, BadParameter, BadPlugin, CachemarkError, Unsupported
from ...core.result import Status
from ...machine.affinity import pin
from ...machine.memory import cap, exhausted
from ...plans.expand import Planned
from ...plugins import loading as plugins
from ..bounds import bounded_log
from ..measurement import Measurement, failed
from ..request import Task, TrialRequest
from .bench import Bench
from .measure import fill, probe, run_case, run_side, see_side
from .talk import Talk

Work = Callable[[Planned, Bench], Measurement]


def main() -> None:
    """Entry of the child process."""
    talk = Talk()
    try:
        request = TrialRequest.from_json(json.loads(talk.request()))
    except CachemarkError as error:
        sys.exit(str(error))
    talk.end_with_parent()
    pin(request.cpus)
    torch.set_num_threads(request.threads)
    if request.memory_cap:
        cap(request.cases[0].case.device_class, request.memory_cap)
    works: dict[Task, Work] = {
        Task.CASE: run_case, Task.TIMES: run_side, Task.IMAGES: see_side, Task.PROBE: probe,
        Task.FEATURES: partial(fill, share=request.share),
    }
    trial = _Trial(request, works[request.task], talk.alive)
    for number, planned in enumerate(request.cases):
        talk.start(number)
        measured, goes_on = trial.run(planned)
        talk.done(number, measured)
        if not goes_on and number + 1 < len(request.cases):
            talk.leaves(number)
            return


@dataclass
class _Trial:
    """The cases of one process, one after the other."""

    request: TrialRequest
    work: Work
    alive: Callable[[int], None]
    bench: Bench | None = None
    _imported: set[str] = field(default_factory=set)

    def run(self, planned: Planned) -> tuple[Measurement, bool]:
        """The measurement of a case, and whether the process is fit for another one."""
        orderly, seconds = True, 0.0
        try:
            bench = self._prepare(planned)
            began = time.perf_counter()
            measured = self.work(planned, bench)
            seconds = time.perf_counter() - began if measured.status is Status.OK else 0.0
        except BaseException as error:  # SystemExit among them: every failure of the code under test is an outcome
            measured, orderly = _failure(error), isinstance(error, Exception)
        fit = orderly and not leaves(measured.status, planned.case.device_class, self.request.memory_cap)
        return replace(measured, seconds=seconds, facts={**measured.facts, **_place(self.request)}), fit

    def _prepare(self, planned: Planned) -> Bench:
        """Load the plug-ins that a case needs, and the model."""
        self._import(set(planned.needs) - self._imported)
        self.bench = self.bench or Bench.load(planned, self.alive, self.request.plugins)
        return self.bench

    def _import(self, missing: set[str]) -> None:
        """Import these plug-ins, in the order in which they were named."""
        if not missing:
            return
        files = {plugins.digest(file): file for file in self.request.plugins}
        if gone := missing - files.keys():
            raise BadPlugin(f"A plug-in has changed since the run began: {len(gone)} of {', '.join(self.request.plugins)}.",
                            remedy="Leave the file alone while it is measured, and run the same command again.")
        for digest, file in files.items():
            if digest in missing:
                plugins.load(file)
                self._imported.add(digest)


def _failure(error: BaseException) -> Measurement:
    """The measurement of a case that has raised something."""
    if isinstance(error, Unsupported | BadBudget | BadParameter):
        status, log = Status.UNSUPPORTED, str(error)
    elif isinstance(error, MemoryError | torch.OutOfMemoryError):
        status, log = Status.OOM, f"{type(error).__name__}: {error}"
    elif isinstance(error, CachemarkError):
        status, log = Status.ERROR, str(error)
    else:
        log = "".join(traceback.format_exception(error))
        status = Status.OOM if exhausted(error) else Status.ERROR
    return failed(status, bounded_log(log).strip() or "No reason was given.")


def leaves(status: Status, device: str, memory_cap: int) -> bool:
    """True where the next case needs a fresh process: after an error a CUDA context may be of no use any more, and where memory ran out
    it may be in pieces."""
    return status in (Status.OOM, Status.ERROR) and (device != "cpu" or bool(memory_cap))


def _place(request: TrialRequest) -> dict[str, Any]:
    """Facts about the process that a case ran in: threads, processors and the limit of its memory."""
    cap = {"memory_cap": request.memory_cap} if request.memory_cap else {}
    return {"threads": torch.get_num_threads(), "cpus": list(request.cpus), **cap}


if __name__ == "__main__":
    main()
