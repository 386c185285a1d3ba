"""Bytes of keys and values of every method on a next-scale model, in the accountings of AMS-KV, and which of its printed figures follow."""

from __future__ import annotations

from typing import Any

import torch

from .. import methods
from ..cache.layout import Layout
from ..core import registry
from ..core.errors import Unsupported
from ..methods.ams_kv import AMSKV
from ..methods.base.evicting import Evicting
from ..methods.full import Full
from ..models import catalogue
from ..models.protocol import ModelEntry
from ..roofline.kv_bytes import MIXED, PAPER_UNIT, PrintedBytes, entries, equal_widths, nbytes, published

assert methods is not catalogue  # importing them registers methods and models


def sizes(model: str, batch: int, dtype: str, demanding: int | None = None) -> dict[str, Any]:
    """Rows by method, as ``methods``, and what AMS-KV prints of the model, as ``published``. ``demanding`` layers of ams_kv have the larger
    budget; None is a sixth of them. Raises Unsupported for a model of another family."""
    entry: ModelEntry = registry.models.get(model)
    if entry.paradigm != "next-scale":
        raise Unsupported(f"{model} is a {entry.paradigm} model.", remedy="--kv is for next-scale models, such as var-d30.")
    layout = entry.shape(entry.presets["paper"], batch)
    count = sixth(layout) if demanding is None else min(demanding, layout.layers)
    return {"model": model, "batch": batch, "dtype": dtype, "demanding": count, "rows": layout.rows, "layers": layout.layers,
            "scales": list(layout.scales), "methods": _methods(layout, count, getattr(torch, dtype)), "published": _claims(model, entry)}


def sixth(layout: Layout) -> int:
    """As many demanding layers as AMS-KV's Table 2 has."""
    return layout.layers // 6


def _methods(layout: Layout, count: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Every method that runs on the layout, ams_kv with ``count`` demanding layers and its rivals at the same bytes."""
    ours = AMSKV(demanding=tuple(range(count)))
    share = entries(ours, layout) // layout.layers
    built = {"full, last scale kept": Full(store_last=True), "full": Full(), f"ams_kv, {count} demanding layers": ours}
    for name in registry.methods:
        cls = registry.methods.get(name)
        if layout.paradigm in cls.paradigms and cls not in (Full, AMSKV):
            evicts = issubclass(cls, Evicting)
            built[f"{name}, B = {share}" if evicts else name] = cls(B=share) if evicts else cls()
    everything, read, widths = layout.layers * layout.visual, layout.layers * layout.cacheable, equal_widths(dtype)

    def row(name: str, cached: int) -> dict[str, Any]:
        size, mixed = nbytes(layout, cached, widths), nbytes(layout, cached, MIXED)
        return {"method": name, "entries_per_layer": cached / layout.layers, "bytes": size, "gib": size / 2**30,
                "paper_unit": size / PAPER_UNIT, "share": cached / everything, "share_of_full": cached / read,
                "published_unit": mixed / PAPER_UNIT}

    return [row(name, entries(method, layout)) for name, method in built.items()]


def _claims(model: str, entry: ModelEntry) -> list[dict[str, Any]]:
    """Each printed figure with whether it follows."""
    claims = []
    for figure in published(model):
        layout = entry.shape(entry.presets["paper"], figure.batch)
        if figure.method == "full":
            size = nbytes(layout, entries(Full(store_last=True), layout), MIXED)
            verdict = "reproduced" if figure.agrees(size) else "not reproduced"
            finding = f"{verdict}: {size:,} bytes with K in fp32, V in 16 bit, all scales kept"
        else:
            finding = "; ".join(_counted(figure, layout, widths, said) for widths, said in ((MIXED, "K in fp32"), ((2, 2), "K in 16 bit")))
        claims.append({"table": figure.table, "batch": figure.batch, "method": figure.method, "printed": figure.printed,
                       "finding": finding})
    return claims


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
