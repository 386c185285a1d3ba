"""The cost of a plan: device hours, memory and disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import torch

from ..core import limits
from ..core.errors import CachemarkError
from ..machine import gpu as driver
from ..machine.environment import environment
from ..machine.rates import rate
from ..methods.base import calibrations
from ..methods.base.calibrations import Calibrated, even
from ..methods.registry import METHODS
from ..models.protocol import ModelEntry
from ..models.registry import MODELS
from ..plans.expand import expand
from ..plans.planned import Planned, Prepared
from ..plans.price import ModelPrice, by_model, fetch_commands, without_missing
from ..plans.schema import Cells, MethodTable, Plan, prepare
from . import max_batch
from .decidable import too_few_seeds
from .pending import decide
from .roofline import known_parameters
from .session import Machine, opened


@dataclass(frozen=True)
class PriceList:
    """The cost of a plan on a device or a GPU: number of ``cases``, those ``to_run``, and cost by model.

    ``missing`` files are replaced by random weights, and calibrations of such weights by assumed ones; ``fetch``: the commands that get
    some of them. ``disk_free``: bytes here. ``memory``: bytes of the device, or the worker's limit; 0 if unknown. ``idle``: cases
    whose method has no effect, with the reason. ``too_few_seeds``: that no method can have a rank.
    """

    plan: str
    on: str
    cases: int
    to_run: int
    models: tuple[ModelPrice, ...]
    missing: tuple[str, ...]
    disk_free: int
    memory: int = 0
    idle: tuple[tuple[str, str], ...] = ()
    too_few_seeds: str = ""
    fetch: Mapping[str, str] = field(default_factory=dict)

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
    return PriceList(
        loaded.name, on or machine.device, len(cases), len(to_run), tuple(models), tuple(missing), shutil.disk_usage(Path.cwd()).free,
        machine.memory_cap or _memory(on, machine), idle, too_few_seeds(cases), fetch_commands(loaded, missing))


def _memory(on: str, machine: Machine) -> int:
    """Return the bytes of a card, or of the smallest device that would be used; 0 if unknown."""
    if on:
        return limits.MEMORY.get(on.lower(), 0)
    if machine.device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(CachemarkError, driver.Lost):  # nothing here needs the device, and stored durations are a price without one
        devices = driver.gpus()
        return min((gpu.memory() or 0 for gpu in driver.chosen(machine.gpus, devices) or devices[:1]), default=0)
    return 0


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
