"""The price of a plan before it is run, and the deadline that a run must meet."""

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
    """The cost of a model's cases: device hours, bytes of disk, and the most device memory in bytes. ``from_stored`` of them are priced by
    what they took before."""

    model: str
    cases: int
    hours: float
    from_stored: int
    disk: int
    memory: int


@dataclass(frozen=True)
class PriceList:
    """The cost of a plan on a device or a card: ``cases`` in all, ``to_run`` of them not measured yet. ``missing`` files and folders are
    priced with random weights, and methods that need a measurement of such weights with a stand-in for it; ``disk_free`` is bytes here.
    ``idle``: cases whose method does nothing, each with the reason."""

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
    """The cost of a plan on this machine, or on a card by name (``on``); nothing is run. ``store`` holds what is measured already."""
    machine, (loaded, _) = Machine.of(machine), prepare(plan, plugins, methods)
    bare, missing = without_missing(loaded)
    todo = limited(expand(with_stand_ins(loaded, bare), "cuda" if on else machine.device), machine.memory_cap)
    with opened(None if on else store) as known:
        left, before = _left(todo, known, machine)
        cost = bill(loaded, left, partial(_rates, machine.device, machine.threads, on), before, missing)
    models = []
    for model in dict.fromkeys(p.case.model for p in left):
        own = [p for p in left if p.case.model == model]
        prices = [cost.prices[p.case.key] for p in own]
        models.append(ModelPrice(model, len(own), cost.hours(left, model), sum(p.stored for p in prices), sum(p.disk for p in prices),
                                 max(p.memory for p in prices)))
    return PriceList(loaded.name, on or machine.device, len(todo), len(left), tuple(models), tuple(missing),
                     shutil.disk_usage(Path.cwd()).free, tuple((p.case.title, p.idle_reason) for p in todo if p.idle_reason))


def deadline(seconds: float | None, store: Store, machine: Machine, places: Executor) -> Deadline | None:
    """A deadline so many seconds from now that knows what cases took before, and how long a process takes to start; None where none is
    set. On paper a case is priced with the rates that the run has of its device."""
    if seconds is None:
        return None
    here = places.environment(machine.device, machine.threads)

    def priced(planned: Planned) -> tuple[float, bool]:
        found = price(planned, lambda dtype: _known(planned.rates, machine.device), store.seconds(planned.case.key, here.machine_class))
        return found.seconds, found.stored

    return Deadline(seconds, priced, startup=STARTUP)


@cache
def _rates(device: str, threads: int, card: str, dtype: str) -> Rates:
    """Measured once where the device is here, else from the card's data sheet."""
    if card:
        return limits.gpu(card, dtype)
    return rate(device, threads, dtype)


def _known(found: Rates | None, device: str) -> Rates:
    if found is None:
        raise Infrastructure(f"The rates of {device} cannot be measured, so nothing can be priced.", remedy="See `cachemark doctor`.")
    return found


def _left(todo: list[Planned], store: Store | None, machine: Machine) -> tuple[list[Planned], Callable[[str], float | None]]:
    """The cases that are not stored yet, and the seconds that a case took before on a machine of this class, by its key."""
    if store is None:
        return todo, lambda key: None
    here = environment(machine.device, machine.threads)
    decisions = decide(todo, store, here, memory_cap=machine.memory_cap)
    return [decision.planned for decision in decisions if not decision.stored], lambda key: store.seconds(key, here.machine_class)
