"""Arithmetic before anything is measured: roofline times of a model under methods, budgets and batches."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..cache.layout import Layout
from ..cache.masked_layout import MaskedLayout
from ..contract.method import Method
from ..core import limits
from ..core.errors import BadBudget, BadParameter, Unsupported
from ..core.limits import Rates
from ..core.spec import FULL, Budget
from ..core.wording import count
from ..machine import rates as measured
from ..machine.environment import environment
from ..methods.base.evicting import Evicting
from ..methods.registry import METHODS
from ..models.protocol import ModelEntry
from ..models.registry import MODELS
from ..plans.expand import resolve
from ..roofline.bill import attended, bill
from ..roofline.operations import BYTES, Bill
from .stand_ins import calibration_parameter, sixth

OWN = "own"  # the budget that a method's own sizes are
DEMANDING, MASKED = "ams_kv", "masked"  # the method whose layers may be demanding, and the models whose passes are asked for
DEFAULTS = {
    "next-token": (("linear",), ("1/4", "1/6", "1/8")), "next-scale": (("ams_kv",), (OWN,)), "masked": (("lazymar", "marche"), (OWN,)),
}  # fmt: skip


@dataclass(frozen=True)
class RooflineTime:
    """One line: a method under a budget at a batch, or the ``unsupported_reason`` why there is none. ``seconds`` of the batch at least,
    ``parts`` of them by operation; ``speedup`` over the full cache that bytes and FLOPs allow; ``nbytes`` of the batch by kind;
    ``attended``: entries that a query looks at on average, None in a masked model."""

    method: str
    budget: str
    batch: int
    unsupported_reason: str = ""
    passes: int = 0
    seconds: float = 0.0
    speedup: float = 0.0
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


def roofline_times(
    model: str, rates: Rates, *, methods: Sequence[str] = (), budgets: Sequence[str] = (), batches: Sequence[int] = (1,),
    dtype: str = "bfloat16", preset: str = "paper", steps: int = 0, demanding: int | None = None, apart: bool = False,
) -> list[RooflineTime]:
    """The full cache and each method under each budget, at each batch. Empty ``methods`` and ``budgets`` are the family's own;
    the budget ``own`` is what a method's sizes are. ``steps`` replaces the passes of a masked model; ``demanding`` layers of ams_kv have
    the larger budget, a sixth where it is None. ``apart`` charges activations as operations of their own. Raises BadBudget for a budget
    that is none, Unsupported for ``steps`` of a model that has none, BadParameter for ``demanding`` layers that nothing has."""
    entry: ModelEntry = MODELS.get(model)
    if (parts := entry.parameter_counts()) is None:
        raise Unsupported(f"Nobody has counted the products of {model}.", remedy="Give its entry parameter_counts.")
    own_methods, own_budgets = DEFAULTS[entry.paradigm]
    check_budgets(budgets)
    _refuse_unused(entry, methods or own_methods, steps, demanding)
    sampling = replace(entry.presets[preset], steps=steps) if steps else entry.presets[preset]
    found = []
    for batch in batches:
        layout = replace(entry.shape(sampling, batch), dtype=getattr(torch, dtype))
        full = _line(FULL, "1", batch, bill(METHODS.get(FULL)(), layout, parts), rates, None, apart)
        found.append(replace(full, attended=_attended(METHODS.get(FULL)(), layout)))
        for name, budget, method in priced_methods(methods or own_methods, budgets or own_budgets, layout, demanding, entry):
            if isinstance(method, str):
                found.append(RooflineTime(name, budget, batch, method))
                continue
            candidate = _line(name, budget, batch, bill(method, layout, parts), rates, full, apart)
            found.append(replace(candidate, attended=_attended(method, layout)))
    return found


def check_budgets(budgets: Sequence[str]) -> None:
    """Raise BadBudget for one that is neither a share of the full cache nor ``own``."""
    for budget in budgets:
        try:
            Budget.parse("1" if budget == OWN else budget)
        except BadBudget as error:
            near = f"Did you mean {OWN!r}? " if difflib.get_close_matches(budget, [OWN]) else ""
            raise BadBudget(error.message, remedy=f"{near}Write a share of the full cache such as 1/4, or {OWN} for a method's own sizes."
                            ) from None


def check_demanding(demanding: int, layout: Layout) -> None:
    """Raise BadParameter for more demanding layers than there are."""
    if not 0 <= demanding <= layout.layers:
        raise BadParameter(f"{count(demanding, 'demanding layer')}, and the model has {layout.layers}.",
                           remedy=f"Give 0 … {layout.layers}.")


def _refuse_unused(entry: ModelEntry, names: Sequence[str], steps: int, demanding: int | None) -> None:
    """Raise where a number is given that nothing here would read."""
    if steps and entry.paradigm != MASKED:
        raise Unsupported(f"{steps} steps: {entry.name} is a {entry.paradigm} model, whose passes follow from its tokens.",
                          remedy="Leave the steps out, or name a masked model, such as mar-l.")
    if demanding is None:
        return
    if DEMANDING not in names or entry.paradigm not in METHODS.get(DEMANDING).paradigms:
        raise BadParameter(f"{count(demanding, 'demanding layer')}: only {DEMANDING} has such layers, on a next-scale model; here "
                           f"{', '.join(names)} would run on {entry.name}, a {entry.paradigm} model.",
                           remedy=f"Leave them out, or name {DEMANDING} and a next-scale model, such as var-d30.")
    check_demanding(demanding, entry.shape(entry.presets["paper"], 1))


def priced_methods(
    names: Sequence[str], budgets: Sequence[str], layout: Layout, demanding: int | None, entry: ModelEntry,
) -> Iterator[tuple[str, str, Method | str]]:
    """Methods with their parameters, or the reason why there is none. The full cache has no budgets, and stands before them anyway."""
    for name in dict.fromkeys(names):
        cls: type[Method] = METHODS.get(name)
        layers = range(sixth(layout) if demanding is None else demanding)
        parameters: dict[str, Any] = {"demanding": tuple(layers)} if name == DEMANDING else calibration_parameter(cls, entry)
        if name == FULL:
            continue
        for budget in budgets:
            try:
                if layout.paradigm not in cls.paradigms:
                    raise BadBudget(f"{name} does not run on {layout.paradigm} models.", remedy=f"It runs on: {', '.join(cls.paradigms)}.")
                if budget == OWN and issubclass(cls, Evicting) and cls.own_budget is Method.own_budget:
                    raise BadBudget(f"{name} has no sizes of its own.", remedy="Give a share of the full cache, such as 1/4.")
                method = cls.build(parameters if budget == OWN else resolve(cls, Budget.parse(budget), layout, parameters))
                method.resolve(layout)
                yield name, budget, method
            except (BadBudget, BadParameter) as error:
                yield name, budget, str(error)


def _line(name: str, budget: str, batch: int, found: Bill, rates: Rates, full: RooflineTime | None, apart: bool) -> RooflineTime:
    seconds = found.roofline_time(rates, apart=apart)
    return RooflineTime(
        name, budget, batch, "", found.passes, seconds, (full.seconds if full else seconds) / seconds,
        {part: found.only(part).roofline_time(rates, apart=apart) for part in found.parts}, {kind: found.moved(kind) for kind in BYTES},
        found.flops,
    )


def _attended(method: Method, layout: Layout) -> float | None:
    if isinstance(layout, MaskedLayout):
        return None
    method.resolve(layout)
    return attended(method, layout)
