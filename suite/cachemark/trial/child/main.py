"""A trial: one fresh process that runs cases of one model and reports each as a message to its parent.

A process imports a plug-in right before the first case that needs it, and its parent gives it no case behind that which does not need it:
what a plug-in does to its process touches its own cases alone. When its parent dies, the pipe closes and the trial ends.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ...core import plugins, registry
from ...core.errors import BadBudget, BadKnob, BadPlugin, CachemarkError, Unsupported
from ...core.outside_metrics import KEY
from ...core.result import INSPECTED, Outcome, Status
from ...core.spec import FULL
from ...machine.affinity import pin
from ...machine.memory import cap, exhausted
from ...machine.shared_state import Change, Impact
from ...plans.expand import Planned
from ..bounds import bounded_log
from ..request import Task, TrialRequest
from .bench import Bench
from .inspecting import disturbed, inspected
from .measure import Ended, fill, probe, run_arm, run_case, see_arm
from .metric_host import Fault
from .surroundings import Surroundings, flagged
from .talk import Talk

Work = Callable[[Planned, Bench], Ended]
UNNAMED = "imported files of the plug-in's own that no import statement names"


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
        Task.CASE: run_case, Task.TIMES: run_arm, Task.IMAGES: see_arm, Task.PROBE: probe,
        Task.FEATURES: partial(fill, share=request.share),
    }
    trial = _Trial(request, works[request.task], talk.alive)
    for number, planned in enumerate(request.cases):
        talk.start(number)
        outcome, artifacts, goes_on = trial.run(planned)
        talk.done(number, outcome, artifacts)
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
    _surroundings: Surroundings = field(default_factory=Surroundings)
    _settled: bool = False
    _imported: set[str] = field(default_factory=set)

    def run(self, planned: Planned) -> tuple[Outcome, dict[str, bytes], bool]:
        """The outcome of a case with its artifacts, and whether the process is fit for another one."""
        at_import, orderly = list[Change](), True
        try:
            at_import = self._prepare(planned)
            assert self.bench is not None
            began = time.perf_counter()
            outcome, artifacts = self.work(planned, self.bench)
            outcome = replace(outcome, seconds=time.perf_counter() - began if outcome.ok else 0.0)
        except BaseException as error:  # SystemExit among them: every failure of the code under test is an outcome
            outcome, artifacts, orderly = _failed(planned, error), {}, isinstance(error, Exception)
        changes = self._changes(planned)
        outcome = flagged(outcome, at_import, changes)
        if self.request.task is Task.CASE and self.bench is not None:
            self.alive(0)
            outcome, whole = inspected(planned, self.bench, outcome)
            if INSPECTED in outcome.facts:
                known = {change.what for change in changes}
                later = [change for change in self._changes(planned) if change.what not in known]
                outcome, orderly = disturbed(outcome, later), orderly and whole and not later
        outcome = replace(outcome, facts={**outcome.facts, **_place(self.request)})
        fit = orderly and not changes and not leaves(outcome, self.request.memory_cap)
        return outcome, artifacts if outcome.ok else {}, fit

    def _prepare(self, planned: Planned) -> list[Change]:
        """Load the model and the plug-ins that a case needs, where that has not been done; what importing these has changed."""
        missing = set(planned.needs) - self._imported
        if self.bench is None and (not missing or planned.case.model in registry.models):
            self.bench = self._load(planned)
        if missing or not self._settled:
            self._surroundings.reset(self.bench.loaded.parameters if self.bench else ())
            self._settled = True
        if not missing:
            return []
        self._import(missing)
        changes = self._surroundings.imported()
        if self.bench is None:
            self.bench = self._load(planned)
            self._surroundings.reset(self.bench.loaded.parameters)
        return changes

    def _load(self, planned: Planned) -> Bench:
        """The model, and where its images will be judged by metrics of plug-ins the process for these: one that a case left behind would be
        told of it."""
        bench = Bench.load(planned, self.alive, self.request.plugins)
        judged = self.request.task in (Task.CASE, Task.IMAGES) and bench.loaded.pictures
        if judged and any(each.case.evaluation.get(KEY) for each in self.request.cases):
            with suppress(Fault):  # said where figures are asked for
                bench.metric_host.start()
        return bench

    def _import(self, missing: set[str]) -> None:
        """Import these plug-ins, in the order in which they were named."""
        files = {plugins.digest(file): file for file in self.request.plugins}
        if gone := missing - files.keys():
            raise BadPlugin(f"A plug-in has changed since the run began: {len(gone)} of {', '.join(self.request.plugins)}.",
                            remedy="Leave the file alone while it is measured, and run the same command again.")
        for digest, file in files.items():
            if digest in missing:
                plugins.load(file)
                self._imported.add(digest)

    def _changes(self, planned: Planned) -> list[Change]:
        """Changes that the case has made. Libraries settle in the first full cache of a process, and nobody is to blame; later too one that
        is needed for the first time may set a variable or a handler, so that without a plug-in only what harms figures is told."""
        if not planned.needs and planned.case.method == FULL:
            self._settled = False
            return []
        found = self._surroundings.changed(self.bench.loaded.parameters if self.bench else ())
        found += [Change(f"{UNNAMED}: {name}", Impact.FIGURES) for name in plugins.strays()]
        return [change for change in found if planned.needs or change.impact > Impact.NONE]


def _failed(planned: Planned, error: BaseException) -> Outcome:
    """The outcome of a case that has raised something."""
    if isinstance(error, Unsupported | BadBudget | BadKnob):
        status, log = Status.UNSUPPORTED, str(error)
    elif isinstance(error, MemoryError | torch.OutOfMemoryError):
        status, log = Status.OOM, f"{type(error).__name__}: {error}"
    elif isinstance(error, CachemarkError):
        status, log = Status.ERROR, str(error)
    else:
        log = "".join(traceback.format_exception(error))
        status = Status.OOM if exhausted(error) else Status.ERROR
    return Outcome(planned.case, status, log=bounded_log(log).strip() or "No reason was given.")


def leaves(outcome: Outcome, memory_cap: int) -> bool:
    """True where the next case needs a fresh process: after an error a CUDA context may be of no use any more, and where memory ran out
    it may be in pieces."""
    return outcome.status in (Status.OOM, Status.ERROR) and (outcome.case.device_class != "cpu" or bool(memory_cap))


def _place(request: TrialRequest) -> dict[str, Any]:
    """Facts about the process that a case ran in: threads, processors and the limit of its memory."""
    cap = {"memory_cap": request.memory_cap} if request.memory_cap else {}
    return {"threads": torch.get_num_threads(), "cpus": list(request.cpus), **cap}


if __name__ == "__main__":
    main()
