"""Doubling of the seeds until each method is shown to be non-inferior to the full cache, or worse."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..analysis.quality_claims import standing
from ..core.errors import BadPlan, NothingMeasured
from ..core.seeds import SIZES
from ..plans.schema import Plan, prepare
from .pairs import series_of
from .results import Run
from .run import run
from .session import DEFAULT_STORE, UNWATCHED, Machine, RunWatcher

DECIDED, TIME, SEEDS = "decided", "time", "seeds"
GROWTH = 2  # times as many seeds at each interim: all interim analyses together cost at most twice the last one


@dataclass(frozen=True)
class Interim:
    """Interim result at so many ``samples``: titles of cases by state.

    ``qualified``: non-inferior; ``disqualified``: lose the margin or more; ``open``: inconclusive.
    """

    samples: int
    qualified: tuple[str, ...]
    disqualified: tuple[str, ...]
    open: tuple[str, ...]


@dataclass(frozen=True)
class UntilDecided:
    """The last ``run``, all interim results, and the reason of the end (``decided``, ``time``, ``seeds``)."""

    run: Run
    interims: tuple[Interim, ...]
    ended: str


def until_decided(
    plan: Plan | str | Path, store: str | Path = DEFAULT_STORE, *, machine: Machine | str = "cpu", plugins: Sequence[str | Path] = (),
    methods: Sequence[str] = (), fresh: bool = False, minutes: float | None = None, watcher: RunWatcher = UNWATCHED,
    on_interim: Callable[[Interim], None] = lambda interim: None,
) -> UntilDecided:
    """Measure a plan at its own number of samples, then at twice as many, until every method is decided.

    The tests are valid at any time (docs/explanation/statistics.md). Arguments are those of :func:`~.run.run`; no round starts that would
    exceed ``minutes`` if it took twice as long as the one before. Raises BadPlan for a plan with a quality pass, whose values are of whole
    sets of images, and NothingMeasured if no case has a quality value per image.
    """
    loaded, files = prepare(plan, plugins, methods)
    if loaded.quality is not None:
        raise BadPlan(f"Plan {loaded.name} has a quality pass, and a FID cannot be decided seed by seed.",
                      remedy="Leave [quality] out, or run the plan without --until-decided.")
    interims: list[Interim] = []
    began = time.monotonic()
    for grown in _larger(loaded):
        before = time.monotonic()
        result = run(grown, store, machine=machine, plugins=files, fresh=fresh, watcher=watcher)
        interims.append(_interim(result, grown.fidelity.samples))
        on_interim(interims[-1])
        if not interims[-1].open:
            return UntilDecided(result, tuple(interims), DECIDED)
        now = time.monotonic()
        if minutes is not None and now - began + GROWTH * (now - before) > 60 * minutes:
            return UntilDecided(result, tuple(interims), TIME)
    return UntilDecided(result, tuple(interims), SEEDS)


def _larger(plan: Plan) -> list[Plan]:
    """Return the plan at its own number of samples, at twice as many, and so on to the end of its seeds."""
    fidelity = plan.fidelity
    sizes = sorted((size, name) for name, size in SIZES.items() if series_of(name) == series_of(fidelity.seeds))
    plans, times = [], 1
    while (samples := fidelity.samples * times) <= max([fidelity.samples, *(size for size, _ in sizes)]):
        seeds = next((name for size, name in sizes if size >= samples), fidelity.seeds)
        grown = fidelity.model_copy(update={"sequential": True, "samples": samples, "seeds": seeds})
        cells = [block.model_copy(update={"samples": block.samples * times}) for block in plan.cells]
        plans.append(plan.model_copy(update={"fidelity": grown, "cells": cells}))
        times *= GROWTH
    return plans


def _interim(result: Run, samples: int) -> Interim:
    groups, claims = standing(result.outcomes, sequential=True)
    rows = {row.case.key: row.case.title for group in groups for row in group.candidates if row.case.key in claims}
    if not rows:
        raise NothingMeasured("No case has a quality value per image, so nothing can be decided.",
                              remedy="Bundled models have one; `cachemark show` prints the status of each case.")
    states: dict[int, list[str]] = {1: [], -1: [], 0: []}  # non-inferior, a loss of the margin or more, inconclusive
    for key, title in rows.items():
        states[1 if claims[key].non_inferior else -1 if claims[key].inferior else 0].append(title)
    return Interim(samples, *map(tuple, states.values()))
