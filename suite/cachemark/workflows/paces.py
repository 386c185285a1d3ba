"""The pace of a model before its first case has begun: one batch of its full cache by the clock, over its seconds on paper.

Arithmetic knows how the cases of one model compare, and errs between families: on one thread of a CPU small models took from 2 to 3.2
times what it allows. A model of which nothing is known therefore draws one batch before a long run begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from ..core.errors import CachemarkError
from ..machine.affinity import torch_threads
from ..plans.expand import MAX_BATCH, Planned
from ..trial.child.bench import Bench, case_job

LONG = 30.0  # seconds on paper from which a run is worth it
SHARE = 0.01  # of a run on paper that one such batch may take on paper
PATIENCE = 3.0  # shares of a run on paper after which a batch is given up: the machine is slower than anybody thought


FirstPaces = Callable[[Sequence[Planned], Callable[[Planned], float], float], dict[str, float]]


class _TooSlow(CachemarkError):
    """Ends a batch that takes too long."""


def paces(planned: Sequence[Planned], on_paper: Callable[[Planned], float], whole: float, threads: int) -> dict[str, float]:
    """Seconds by the clock for each on paper, by model. ``planned`` are the cases to come of which nothing is known, in their order;
    ``on_paper`` gives the seconds of one batch of a case, ``whole`` are those of the run.

    On a CPU alone: a GPU is left to the trials. The first model is left out, since its own cases tell at once; so are those of plug-ins,
    whose code runs in trials alone, large files, and models of which one batch would take more than ``SHARE`` of the run."""
    if whole < LONG:
        return {}
    first = planned[0].case.model if planned else ""
    found: dict[str, float] = {}
    for each in planned:
        case, paper = each.case, 0.0
        if case.role == "baseline" and case.model not in (first, *found) and _drawable(each):
            paper = on_paper(each)
        if 0 < paper <= SHARE * whole and (seconds := _seconds(each, threads, PATIENCE * SHARE * whole)) is not None:
            found[case.model] = seconds / paper
    return found


def no_paces(planned: Sequence[Planned], on_paper: Callable[[Planned], float], whole: float) -> dict[str, float]:
    """Of trials elsewhere, at whose pace nothing goes here."""
    return {}


def _drawable(planned: Planned) -> bool:
    """True of what this process may draw: models of this package, by the weights in it or random ones."""
    case, own = planned.case, planned.needs or planned.request.weights or planned.request.decoder_weights
    return case.device_class == "cpu" and planned.rates is not None and not own and MAX_BATCH not in case.evaluation


def _seconds(planned: Planned, threads: int, most: float) -> float | None:
    """Seconds of one batch with its images, None where it takes more than ``most`` or fails."""
    def mark(index: int) -> None:
        if time.perf_counter() - began > most:
            raise _TooSlow("It takes too long.")

    try:
        with torch_threads(threads), torch.inference_mode():
            bench = Bench.load(planned)
            job = case_job(planned.case, bench).first(planned.case.batch)
            labels = torch.tensor(job.subset.labels, device=job.device)
            began = time.perf_counter()
            job.decode(job.drawn(labels, job.subset.seeds, job.memory, mark=mark))
            return time.perf_counter() - began
    except Exception:  # of whatever kind: an estimate must not end a run
        return None
