"""Arithmetic before anything is measured: least times of a model under methods, budgets and batches."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..cache.layout import Layout
from ..cache.masked_layout import MaskedLayout
from ..contract.method import Method
from ..core import calibrations, limits, registry
from ..core.errors import BadBudget, BadKnob, Unsupported
from ..core.limits import BYTES, Bill, Rates
from ..core.spec import FULL, Budget
from ..machine import rates as measured
from ..machine.environment import environment
from ..methods.base.calibrated import Calibrated
from ..models.protocol import ModelEntry, Request
from ..plans.expand import catalogue, methods, resolve
from ..roofline.bill import attended, bill

assert catalogue is not methods  # importing them registers models and methods
OWN = "own"  # the budget that a method's own sizes are
DEFAULTS = {
    "next-token": (("linear",), ("1/4", "1/6", "1/8")), "next-scale": (("ams_kv",), (OWN,)), "masked": (("lazymar", "marche"), (OWN,)),
}  # fmt: skip


@dataclass(frozen=True)
class LeastTime:
    """One line: a method under a budget at a batch, or the ``unsupported_reason`` why there is none. ``seconds`` of the batch at least,
    ``parts`` of them by operation; ``speed_up`` over the full cache that bytes and FLOPs allow; ``nbytes`` of the batch by kind;
    ``attended``: entries that a query looks at on average, None in a masked model."""

    method: str
    budget: str
    batch: int
    unsupported_reason: str = ""
    passes: int = 0
    seconds: float = 0.0
    speed_up: float = 0.0
    parts: dict[str, float] | None = None
    nbytes: dict[str, int] | None = None
    flops: int = 0
    attended: float | None = None


def device_rates(gpu: str | None, dtype: str) -> Rates:
    """Rates of a GPU by name, in 16 bit, or of this machine (None), measured. Raises Unsupported for a name with float32, and
    Infrastructure where nothing can be measured."""
    if gpu is not None:
        if dtype == "float32":
            raise Unsupported("The rates of named GPUs are those of 16 bit.", remedy="Give --dtype bfloat16, or --here.")
        return limits.gpu(gpu)
    device, threads = ("cuda" if torch.cuda.is_available() else "cpu"), os.cpu_count() or 1
    return replace(measured.rate(device, threads, dtype), device=environment(device, threads).machine_class)


def least_times(
    model: str, rates: Rates, *, methods: Sequence[str] = (), budgets: Sequence[str] = (), batches: Sequence[int] = (1,),
    dtype: str = "bfloat16", preset: str = "paper", steps: int = 0, demanding: int | None = None, apart: bool = False,
) -> list[LeastTime]:
    """The full cache and each method under each budget, at each batch. Empty ``methods`` and ``budgets`` are the family's own;
    the budget ``own`` is what a method's sizes are. ``steps`` replaces the passes of a masked model; ``demanding`` layers of ams_kv have
    the larger budget, a sixth where it is None. ``apart`` charges activations as operations of their own."""
    entry: ModelEntry = registry.models.get(model)
    if (parts := entry.parameter_counts()) is None:
        raise Unsupported(f"Nobody has counted the products of {model}.", remedy="Give its entry parameter_counts.")
    own_methods, own_budgets = DEFAULTS[entry.paradigm]
    sampling = replace(entry.presets[preset], steps=steps) if steps else entry.presets[preset]
    found = []
    for batch in batches:
        layout = replace(entry.shape(sampling, batch), dtype=getattr(torch, dtype))
        full = _line(FULL, "1", batch, bill(registry.methods.get(FULL)(), layout, parts), rates, None, apart)
        found.append(replace(full, attended=_attended(registry.methods.get(FULL)(), layout)))
        for name, budget, method in priced_methods(methods or own_methods, budgets or own_budgets, layout, demanding, entry):
            if isinstance(method, str):
                found.append(LeastTime(name, budget, batch, method))
                continue
            arm = _line(name, budget, batch, bill(method, layout, parts), rates, full, apart)
            found.append(replace(arm, attended=_attended(method, layout)))
    return found


def priced_methods(
    names: Sequence[str], budgets: Sequence[str], layout: Layout, demanding: int | None, entry: ModelEntry,
) -> Iterator[tuple[str, str, Method | str]]:
    """Methods with their knobs, or the reason why there is none."""
    for name in names:
        cls: type[Method] = registry.methods.get(name)
        layers = range(sixth(layout) if demanding is None else min(demanding, layout.layers))
        knobs: dict[str, Any] = {"demanding": tuple(layers)} if name == "ams_kv" else calibration_knob(cls, entry)
        for budget in budgets:
            try:
                if layout.paradigm not in cls.paradigms:
                    raise BadBudget(f"{name} does not run on {layout.paradigm} models.", remedy=f"It runs on: {', '.join(cls.paradigms)}.")
                method = cls.build(knobs if budget == OWN else resolve(cls, Budget.parse(budget), layout, knobs))
                method.resolve(layout)
                yield name, budget, method
            except (BadBudget, BadKnob) as error:
                yield name, budget, str(error)


def calibration_knob(cls: type[Method], entry: ModelEntry) -> dict[str, str]:
    """The knob that names the calibration of a model or of its packaged weights; nothing where there is none, or none is asked for."""
    if not issubclass(cls, Calibrated):
        return {}
    facts = calibrations.packaged(cls.name).get(entry.name) or calibrations.measured(cls.name, entry.identity(Request()))
    return {"calibration": calibrations.remember(cls.name, facts)} if facts else {}


def _line(name: str, budget: str, batch: int, found: Bill, rates: Rates, full: LeastTime | None, apart: bool) -> LeastTime:
    seconds = found.least_time(rates, apart=apart)
    return LeastTime(
        name, budget, batch, "", found.passes, seconds, (full.seconds if full else seconds) / seconds,
        {part: found.of_parts(part).least_time(rates, apart=apart) for part in found.parts}, {kind: found.moved(kind) for kind in BYTES},
        found.flops,
    )


def _attended(method: Method, layout: Layout) -> float | None:
    if isinstance(layout, MaskedLayout):
        return None
    method.resolve(layout)
    return attended(method, layout)


def sixth(layout: Layout) -> int:
    """As many demanding layers as AMS-KV's Table 2 has."""
    return layout.layers // 6
