"""Arithmetic before anything is measured: floors of a model's time under methods, budgets and batches, and its bytes of keys and values.

The bytes are those of every method on a next-scale model, in the accountings of AMS-KV, with which of its printed figures follow.
"""

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
from ..methods.ams_kv import AMSKV
from ..methods.base.calibrated import Calibrated
from ..methods.base.evicting import Evicting
from ..methods.full import Full
from ..models.protocol import ModelEntry, Request
from ..plans.expand import catalogue, methods, resolve
from ..roofline.bill import attended, bill
from ..roofline.kv_bytes import MIXED, PAPER_UNIT, PrintedBytes, entries, equal_widths, nbytes, published

assert catalogue is not methods  # importing them registers models and methods
OWN = "own"  # the budget that a method's own sizes are
DEFAULTS = {
    "next-token": (("linear",), ("1/4", "1/6", "1/8")), "next-scale": (("ams_kv",), (OWN,)), "masked": (("lazymar", "marche"), (OWN,)),
}  # fmt: skip


@dataclass(frozen=True)
class Floor:
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


def floors(
    model: str, rates: Rates, *, methods: Sequence[str] = (), budgets: Sequence[str] = (), batches: Sequence[int] = (1,),
    dtype: str = "bfloat16", preset: str = "paper", steps: int = 0, demanding: int | None = None, apart: bool = False,
) -> list[Floor]:
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
        full = _floor(FULL, "1", batch, bill(registry.methods.get(FULL)(), layout, parts), rates, None, apart)
        found.append(replace(full, attended=_attended(registry.methods.get(FULL)(), layout)))
        for name, budget, method in priced_methods(methods or own_methods, budgets or own_budgets, layout, demanding, entry):
            if isinstance(method, str):
                found.append(Floor(name, budget, batch, method))
                continue
            arm = _floor(name, budget, batch, bill(method, layout, parts), rates, full, apart)
            found.append(replace(arm, attended=_attended(method, layout)))
    return found


def priced_methods(
    names: Sequence[str], budgets: Sequence[str], layout: Layout, demanding: int | None, entry: ModelEntry,
) -> Iterator[tuple[str, str, Method | str]]:
    """Methods with their knobs, or the reason why there is none."""
    for name in names:
        cls: type[Method] = registry.methods.get(name)
        layers = range(sixth(layout) if demanding is None else min(demanding, layout.layers))
        knobs: dict[str, Any] = {"demanding": tuple(layers)} if name == "ams_kv" else _calibration(cls, entry)
        for budget in budgets:
            try:
                if layout.paradigm not in cls.paradigms:
                    raise BadBudget(f"{name} does not run on {layout.paradigm} models.", remedy=f"It runs on: {', '.join(cls.paradigms)}.")
                method = cls.build(knobs if budget == OWN else resolve(cls, Budget.parse(budget), layout, knobs))
                method.resolve(layout)
                yield name, budget, method
            except (BadBudget, BadKnob) as error:
                yield name, budget, str(error)


def _calibration(cls: type[Method], entry: ModelEntry) -> dict[str, str]:
    """The knob that names the calibration of a model or of its packaged weights; nothing where there is none, or none is asked for."""
    if not issubclass(cls, Calibrated):
        return {}
    facts = calibrations.packaged(cls.name).get(entry.name) or calibrations.measured(cls.name, entry.identity(Request()))
    return {"calibration": calibrations.remember(cls.name, facts)} if facts else {}


def _floor(name: str, budget: str, batch: int, found: Bill, rates: Rates, full: Floor | None, apart: bool) -> Floor:
    seconds = found.floor(rates, apart=apart)
    return Floor(
        name, budget, batch, "", found.passes, seconds, (full.seconds if full else seconds) / seconds,
        {part: found.of_parts(part).floor(rates, apart=apart) for part in found.parts}, {kind: found.moved(kind) for kind in BYTES},
        found.flops,
    )


def _attended(method: Method, layout: Layout) -> float | None:
    if isinstance(layout, MaskedLayout):
        return None
    method.resolve(layout)
    return attended(method, layout)


def sizes(model: str, batch: int, dtype: str, demanding: int | None = None) -> dict[str, Any]:
    """Rows by method, as ``methods``, and what AMS-KV prints of the model, as ``published``. ``demanding`` layers of ams_kv have the larger
    budget; None is a sixth of them. Raises Unsupported for a model of another family."""
    entry: ModelEntry = registry.models.get(model)
    if entry.paradigm != "next-scale":
        raise Unsupported(f"{model} is a {entry.paradigm} model.", remedy="--kv is for next-scale models, such as var-d30.")
    layout = entry.shape(entry.presets["paper"], batch)
    count = sixth(layout) if demanding is None else min(demanding, layout.layers)
    return {"model": model, "batch": batch, "dtype": dtype, "demanding": count, "rows": layout.rows, "layers": layout.layers,
            "scales": list(layout.scales), "methods": _methods(layout, count, getattr(torch, dtype), entry),
            "published": _claims(model, entry)}


def sixth(layout: Layout) -> int:
    """As many demanding layers as AMS-KV's Table 2 has."""
    return layout.layers // 6


def _methods(layout: Layout, count: int, dtype: torch.dtype, entry: ModelEntry) -> list[dict[str, Any]]:
    """Every method that runs on the layout, ams_kv with ``count`` demanding layers and its rivals at the same bytes."""
    ours = AMSKV(demanding=tuple(range(count)))
    share = entries(ours, layout) // layout.layers
    built = {"full, last scale kept": Full(store_last=True), "full": Full(), f"ams_kv, {count} demanding layers": ours}
    for name in registry.methods:
        cls = registry.methods.get(name)
        if layout.paradigm in cls.paradigms and cls not in (Full, AMSKV):
            built |= _rival(cls, share, _calibration(cls, entry))
    everything, read, widths = layout.layers * layout.visual, layout.layers * layout.cacheable, equal_widths(dtype)

    def row(name: str, cached: int) -> dict[str, Any]:
        size, mixed = nbytes(layout, cached, widths), nbytes(layout, cached, MIXED)
        return {"method": name, "entries_per_layer": cached / layout.layers, "bytes": size, "gib": size / 2**30,
                "paper_unit": size / PAPER_UNIT, "share": cached / everything, "share_of_full": cached / read,
                "published_unit": mixed / PAPER_UNIT}

    return [row(name, entries(method, layout)) for name, method in built.items()]


def _rival(cls: type[Method], share: int, calibration: dict[str, str]) -> dict[str, Method]:
    """A method under its name at about ``share`` entries a layer, or at its own sizes; none that nobody has calibrated for the model."""
    if issubclass(cls, Evicting):
        return {f"{cls.name}, B = {share}": cls(B=share)}
    return {} if issubclass(cls, Calibrated) and not calibration else {cls.name: cls.build(calibration)}


def _claims(model: str, entry: ModelEntry) -> list[dict[str, Any]]:
    """Each printed figure with whether it follows."""
    claims = []
    for figure in published(model):
        layout = entry.shape(entry.presets["paper"], figure.batch or 1)
        if not figure.batch:
            finding = _of_any_batch(figure, layout)
        elif figure.method == "full":
            size = nbytes(layout, entries(Full(store_last=True), layout), MIXED)
            verdict = "reproduced" if figure.agrees(size) else "not reproduced"
            finding = f"{verdict}: {size:,} bytes with K in fp32, V in 16 bit, all scales kept"
        else:
            finding = "; ".join(_counted(figure, layout, widths, said) for widths, said in ((MIXED, "K in fp32"), ((2, 2), "K in 16 bit")))
        claims.append({"table": figure.table, "batch": figure.batch, "method": figure.method, "printed": figure.printed,
                       "finding": finding})
    return claims


def _of_any_batch(figure: PrintedBytes, layout: Layout) -> str:
    """A size that is printed without a batch, in images, from the layout of one."""
    count = sixth(layout)
    ours = AMSKV(demanding=range(count)), f" and {count} demanding layers"
    method, said = (Full(store_last=True), "") if figure.method == "full" else ours
    one = {f"with {width}{said}": nbytes(layout, entries(method, layout), widths)
           for widths, width in ((MIXED, "K in fp32"), ((2, 2), "K in 16 bit"))}
    images = {name: float(figure.printed) * PAPER_UNIT / size for name, size in one.items()}
    for name, number in images.items():
        if round(number) and figure.agrees(round(number) * one[name]):
            return f"reproduced {name} and a batch of {round(number)}"
    found = ", ".join(f"{number:.2f} images {name}" for name, number in images.items())
    return f"not reproduced: it would be the keys and values of {found}; the paper prints no batch and may count more than the cache"


def _counted(figure: PrintedBytes, layout: Layout, widths: tuple[int, int], said: str) -> str:
    """The number of demanding layers that a printed size of AMS-KV would mean under its own policy (C_max and C_min of every layer taken
    literally), and what the nearest whole number of them gives."""
    policy = AMSKV(demanding=())
    policy.resolve(layout)
    most, least, layers = policy.c_max, policy.c_min, layout.layers
    exact = (figure.entries(layout, widths) - layers * least) / (most - least)
    nearest = min(max(round(exact), 0), layers)
    size = nbytes(layout, layers * least + nearest * (most - least), widths)
    if figure.agrees(size):
        return f"reproduced with {said} and {nearest} demanding layers"
    possible = f"{exact:.2f} demanding layers" if 0 <= exact <= layers else f"no number of demanding layers ({exact:.2f})"
    return f"not reproduced with {said}: it would be {possible}; {nearest} give {size / PAPER_UNIT:.3f}"
