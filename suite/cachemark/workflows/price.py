"""The cases of a plan that must run, with reasons and costs; the deadline and remaining time of a run."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from ..core import limits
from ..core.result import Environment, Outcome
from ..core.spec import MAX_BATCH, Case
from ..machine.environment import NUMERICS, OF_CPU, environment
from ..machine.rates import rate
from ..methods.base import calibrations
from ..methods.base.calibrations import Calibrated, even
from ..methods.registry import METHODS
from ..models.protocol import ModelEntry
from ..models.registry import MODELS
from ..plans.deadline import Deadline
from ..plans.expand import expand
from ..plans.planned import Planned, Prepared
from ..plans.price import STARTUP, ModelPrice, batches, by_model, price, without_missing
from ..plans.reuse import result_key, result_parts
from ..plans.schema import Cells, MethodTable, Plan, prepare
from ..store.db import Store
from ..trial.executors.local import Executor
from . import max_batch
from .decidable import too_few_seeds
from .known_seeds import with_known_seeds
from .roofline import known_parameters
from .session import DEFAULT_STORE, Machine, checked, opened

DONE = "done: same case, code, metric definitions and numerics"


# -- cases to run -------------------------------------------------------------------------------------------------------
def explain(
    plan: Plan | str | Path, store: str | Path = DEFAULT_STORE, *, machine: Machine | str = "cpu", plugins: Sequence[str | Path] = (),
    methods: Sequence[str] = (), fresh: bool = False,
) -> list[tuple[Prepared, str]]:
    """Return each case of a plan, with the reason why it would run, or why not; nothing is run."""
    machine, _, _, planned_cases = checked(plan, machine, plugins, methods)
    here = environment(machine.device, machine.threads)
    with opened(store) as source:
        cases = decide(max_batch.limited(planned_cases, machine.memory_cap), source, here, fresh=fresh, memory_cap=machine.memory_cap)
        if source is not None and not fresh:
            cases = with_known_seeds(cases, source, here, machine.memory_cap)
        return [(planned, DONE if planned.stored else _why_run(planned, source, here)) for planned in cases]


def decide(
    cases: Sequence[Planned], store: Store | None, here: Environment, *, fresh: bool = False, memory_cap: int = 0,
) -> list[Prepared]:
    """Return every case with its result key, and whether the store has an outcome with that key.

    With ``fresh`` none counts as stored, and never a search that a deadline ended. ``memory_cap`` is a part of the key, since what fitted
    without it need not fit under it.
    """
    decided = []
    for planned in cases:
        parts = result_parts(planned.case, here) | ({"memory_cap": str(memory_cap)} if memory_cap else {})
        key = result_key(parts)
        outcome = None if fresh or store is None else store.find(key)
        stored = outcome is not None and not max_batch.unfinished(outcome)
        decided.append(Prepared.of(planned, result_key=key, result_parts=parts, stored=stored))
    return decided


def _why_run(planned: Prepared, store: Store | None, here: Environment) -> str:
    refused = planned.unsupported_reason
    return _why_missing(planned, store, here) + (f"; it will be unsupported: {refused}" if refused else "")


def _why_missing(planned: Prepared, store: Store | None, here: Environment) -> str:
    if store is None:
        return "nothing is stored yet"
    latest = store.latest_for_case(planned.case.key)
    if latest is None:
        if planned.known and (taken := planned.known.among(planned.case)):
            return f"{taken} of its {planned.case.compared} samples are stored; the others are generated and the case is timed again"
        differing = [f"{name} ({then!r} → {now!r})" for name, (then, now) in store.nearest(planned.case).items()]
        return f"no such case; the nearest stored one differs in {', '.join(differing[:3])}" if differing else "no such case"
    if not latest.ok:
        return f"last time it ended as {latest.status}"
    then = latest.facts.result_parts or {}
    now = planned.result_parts
    if changed := [name for name in {**now, **then} if then.get(name) != now.get(name)]:
        parts = (f"{name}{_numerics(store.latest_environment(planned.case.key), here)}" if name == "numerics" else name for name in changed)
        return f"changed since: {', '.join(parts)}"
    return "last time a deadline ended its search" if max_batch.unfinished(latest) else "--fresh"


def _numerics(then: Environment | None, now: Environment) -> str:
    """Return in brackets which facts of the numerics differ."""
    if then is None:
        return ""
    names = ("device", "driver", *NUMERICS, *OF_CPU)
    differing = [f"{name} {then.facts.get(name)} → {now.facts.get(name)}" for name in names if then.facts.get(name) != now.facts.get(name)]
    return f" ({', '.join(differing) or 'instruction sets of the CPU'})"


# -- the cost -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PriceList:
    """The cost of a plan on a device or a GPU: number of ``cases``, those ``to_run``, and cost by model.

    ``missing`` files are replaced by random weights, and calibrations of such weights by assumed ones. ``disk_free``: bytes here. ``idle``:
    cases whose method has no effect, with the reason. ``too_few_seeds``: that no method can have a rank.
    """

    plan: str
    on: str
    cases: int
    to_run: int
    models: tuple[ModelPrice, ...]
    missing: tuple[str, ...]
    disk_free: int
    idle: tuple[tuple[str, str], ...] = ()
    too_few_seeds: str = ""

    @property
    def hours(self) -> float:
        """Device hours of all models."""
        return sum(model.hours for model in self.models)


def price_list(
    plan: Plan | str | Path, store: str | Path | None = None, *, machine: Machine | str = "cpu", on: str = "",
    plugins: Sequence[str | Path] = (), methods: Sequence[str] = (),
) -> PriceList:
    """Estimate the cost of the cases that ``store`` does not have, on this machine or on the GPU ``on``."""
    machine, (loaded, _) = Machine.parse(machine), prepare(plan, plugins, methods)
    bare, missing = without_missing(loaded)
    cells = [_calibrated(own) if own.weights != planned.weights else own for planned, own in zip(loaded.cells, bare.cells, strict=True)]
    cases = expand(bare.model_copy(update={"cells": cells}), "cuda" if on else machine.device)
    todo: Sequence[Planned] = (cases := max_batch.limited(cases, machine.memory_cap))
    stored: dict[str, float | None] = {}
    with opened(None if on else store) as source:
        if source is not None:
            here = environment(machine.device, machine.threads)
            todo = [planned for planned in decide(cases, source, here, memory_cap=machine.memory_cap) if not planned.stored]
            stored = {planned.case.key: source.seconds(planned.case.key, here.machine_class) for planned in todo}
    rates = cache(partial(limits.gpu, on) if on else partial(rate, machine.device, machine.threads))
    to_run = [Prepared.of(p, rates=None if stored.get(p.case.key) else rates(p.case.dtype)) for p in todo]
    models, idle = by_model(loaded, to_run, stored.get, missing), tuple((p.case.title, p.idle_reason) for p in cases if p.idle_reason)
    return PriceList(loaded.name, on or machine.device, len(cases), len(to_run), tuple(models), tuple(missing),
                     shutil.disk_usage(Path.cwd()).free, idle, too_few_seeds(cases))


def _calibrated(block: Cells) -> Cells:
    """Return a block whose weights are missing with assumed calibrations, for methods that need one."""
    if block.model not in MODELS:
        return block
    entry: ModelEntry = MODELS.get(block.model)
    entry = entry.of_grid((block.grid[0], block.grid[1])) if block.grid else entry
    layout = entry.shape(entry.presets["paper"], 1)

    def assumed(method: str | MethodTable) -> str | MethodTable:
        named = MethodTable(name=method) if isinstance(method, str) else method
        cls = METHODS.get(named.name) if named.name in METHODS else None
        if cls is None or layout.paradigm not in cls.paradigms:
            return method
        parameters = known_parameters(cls, entry)
        if not parameters and issubclass(cls, Calibrated):
            _, facts = calibrations.named(cls.name, even(layout, cls.name))
            zeros = {table: torch.zeros(shape).tolist() for table, shape in cls().tables(facts, layout).items()}
            parameters = {"calibration": calibrations.remember(cls.name, {**zeros, **facts})}
        return MethodTable.model_validate({**parameters, **named.model_dump()}) if parameters else method

    budgets = [assumed(budget) if isinstance(budget, str | MethodTable) else budget for budget in block.budgets]
    return block.model_copy(update={"methods": [assumed(method) for method in block.methods], "budgets": budgets})


# -- the time of a run --------------------------------------------------------------------------------------------------
def deadline(seconds: float, store: Store, machine: Machine, executor: Executor) -> Deadline:
    """Return a deadline in so many seconds.

    It estimates a case by its stored duration, else by its roofline time at the rates of this run.
    """
    here = executor.environment(machine.device, machine.threads)

    def priced(planned: Prepared) -> tuple[float, bool]:
        cost = price(planned, store.seconds(planned.case.key, here.machine_class))
        return cost.seconds, cost.stored

    return Deadline(seconds, priced, startup=STARTUP)


@dataclass
class _Progress:
    """Two times of a running case, and the images that it has generated."""

    began: float
    last: float
    done: float = 0.0


class TimeLeft:
    """The remaining time of a run: stored seconds of each case, else its images at the pace so far.

    ``planned``: the cases to run; ``stored(key)``: the seconds that a case took before, or None. Methods may be called from several
    threads, one per device.
    """

    def __init__(
        self, planned: Sequence[Planned] = (), stored: Callable[[str], float | None] = lambda key: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._lock, self._at_once = clock, threading.RLock(), 1
        self._left = {each.case.key: each for each in planned if not each.unsupported_reason}
        self._stored = {key: stored(key) for key in self._left}
        self._images = {key: sum(size * times for size, times in batches(each, forced=1.0)) for key, each in self._left.items()}
        self._running: dict[str, _Progress] = {}
        self._pace: dict[str, tuple[float, float]] = {}  # images and seconds of each model, and of all under the empty name

    def started(self, planned: Planned) -> None:
        """Note that a case starts, for the first time or again."""
        with self._lock:
            self._running[planned.case.key] = _Progress(self._clock(), self._clock())
            self._at_once = max(self._at_once, len(self._running))

    def advanced(self, planned: Planned, images: float) -> None:
        """Note that a case has generated another batch of ``images``."""
        with self._lock:
            now, case = self._clock(), self._running.get(planned.case.key)
            if case is None:
                return
            for name in (planned.case.model, ""):
                all_images, seconds = self._pace.get(name, (0.0, 0.0))
                self._pace[name] = all_images + images, seconds + now - case.last
            case.done, case.last = case.done + images, now

    def ended(self, outcome: Outcome) -> None:
        """Note that a case has ended."""
        with self._lock:
            key = outcome.case.key
            if outcome.ok and key in self._running and key in self._left:
                self.advanced(self._left[key], max(self._images[key] - self._running[key].done, 0.0))
            self._left.pop(key, None)
            self._running.pop(key, None)

    def fraction(self, key: str) -> float:
        """Return the fraction of a case that is done: 0 before it starts, below 1 while it runs."""
        with self._lock:
            case, images = self._running.get(key), self._images.get(key)
            return min(0.99, case.done / images) if case and images else 0.0

    def seconds(self) -> float | None:
        """Return the seconds until all cases have ended; None if unknown, or for a batch search."""
        with self._lock:
            estimates = [self._remaining(key, each.case) for key, each in self._left.items()]
            estimated = [seconds for seconds in estimates if seconds is not None]
            return sum(estimated) / self._at_once if estimated and len(estimated) == len(estimates) else None

    def _remaining(self, key: str, case: Case) -> float | None:
        images, seconds = self._pace.get(case.model) or self._pace.get("") or (0.0, 0.0)
        total = self._stored[key]
        if MAX_BATCH in case.evaluation or (total is None and not images):
            return None
        total = self._images[key] * seconds / images if total is None else total
        began = self._running[key].began if key in self._running else self._clock()
        return max(total - (self._clock() - began), 0.0)
