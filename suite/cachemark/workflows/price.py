"""The cost of a plan before it runs, and the deadline of a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from ..core import limits
from ..core.errors import Infrastructure
from ..core.limits import Rates
from ..machine.environment import environment
from ..machine.rates import rate
from ..plans.deadline import Deadline
from ..plans.expand import Planned, expand
from ..plans.price import STARTUP, bill, price, without_missing
from ..plans.schema import Plan, prepare
from ..store.db import Store
from ..trial.executors.local import Executor
from .explain import decide
from .max_batch import limited
from .session import Machine, opened
from .stand_ins import with_stand_ins


@dataclass(frozen=True)
class ModelPrice:
    """The cost of a model's cases: device hours, bytes of disk, and peak device memory in bytes.

    ``from_stored``: number of cases whose cost is their stored duration.
    """

    model: str
    cases: int
    hours: float
    from_stored: int
    disk: int
    memory: int


@dataclass(frozen=True)
class PriceList:
    """The cost of a plan on a device or a GPU: number of ``cases``, those ``to_run``, and cost by model.

    ``missing`` files are replaced by random weights, and calibrations of such weights by assumed ones. ``disk_free``: bytes here. ``idle``:
    cases whose method has no effect, with the reason.
    """

    plan: str
    on: str
    cases: int
    to_run: int
    models: tuple[ModelPrice, ...]
    missing: tuple[str, ...]
    disk_free: int
    idle: tuple[tuple[str, str], ...] = ()

    @property
    def hours(self) -> float:
        """Device hours of all models."""
        return sum(model.hours for model in self.models)


def price_list(
    plan: Plan | str | Path, store: str | Path | None = None, *, machine: Machine | str = "cpu", on: str = "",
    plugins: Sequence[str | Path] = (), methods: Sequence[str] = (),
) -> PriceList:
    """Estimate the cost of the cases that ``store`` does not have, on this machine or on the GPU ``on``."""
    machine, (loaded, _) = Machine.of(machine), prepare(plan, plugins, methods)
    bare, missing = without_missing(loaded)
    todo = limited(expand(with_stand_ins(loaded, bare), "cuda" if on else machine.device), machine.memory_cap)
    with opened(None if on else store) as source:
        to_run, before = _left(todo, source, machine)
        cost = bill(loaded, to_run, partial(_rates, machine.device, machine.threads, on), before, missing)
    models = []
    for model in dict.fromkeys(p.case.model for p in to_run):
        own = [p for p in to_run if p.case.model == model]
        prices = [cost.prices[p.case.key] for p in own]
        models.append(ModelPrice(model, len(own), cost.hours(to_run, model), sum(p.stored for p in prices), sum(p.disk for p in prices),
                                 max(p.memory for p in prices)))
    return PriceList(loaded.name, on or machine.device, len(todo), len(to_run), tuple(models), tuple(missing),
                     shutil.disk_usage(Path.cwd()).free, tuple((p.case.title, p.idle_reason) for p in todo if p.idle_reason))


def deadline(seconds: float | None, store: Store, machine: Machine, places: Executor) -> Deadline | None:
    """Return a deadline in so many seconds, or None.

    It estimates a case by its stored duration, else by its roofline time at the rates of this run.
    """
    if seconds is None:
        return None
    here = places.environment(machine.device, machine.threads)

    def priced(planned: Planned) -> tuple[float, bool]:
        cost = price(planned, lambda dtype: _known(planned.rates, machine.device), store.seconds(planned.case.key, here.machine_class))
        return cost.seconds, cost.stored

    return Deadline(seconds, priced, startup=STARTUP)


@cache
def _rates(device: str, threads: int, card: str, dtype: str) -> Rates:
    """Return the data-sheet rates of a card, else the measured rates of the device."""
    if card:
        return limits.gpu(card, dtype)
    return rate(device, threads, dtype)


def _known(rates: Rates | None, device: str) -> Rates:
    if rates is None:
        raise Infrastructure(f"The rates of {device} cannot be measured, so costs cannot be estimated.", remedy="See `cachemark doctor`.")
    return rates


def _left(todo: list[Planned], store: Store | None, machine: Machine) -> tuple[list[Planned], Callable[[str], float | None]]:
    """Return the cases that are not stored, and the stored seconds of a case by its key."""
    if store is None:
        return todo, lambda key: None
    here = environment(machine.device, machine.threads)
    decisions = decide(todo, store, here, memory_cap=machine.memory_cap)
    return [decision.planned for decision in decisions if not decision.stored], lambda key: store.seconds(key, here.machine_class)
