"""Bytes of keys and values of every method on a next-scale model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from cachemark.cache.layout import Layout
from cachemark.contract.method import Method
from cachemark.core.errors import Unsupported
from cachemark.methods.ams_kv import AMSKV
from cachemark.methods.base.calibrations import Calibrated
from cachemark.methods.base.evicting import Evicting
from cachemark.methods.base.profiles import stated_scales
from cachemark.methods.full import Full
from cachemark.methods.registry import METHODS
from cachemark.models.protocol import ModelEntry
from cachemark.models.registry import MODELS
from cachemark.roofline.memory import entries
from cachemark.workflows.roofline import calibration_parameter

from .entry_counts import kv_bytes
from .published_sizes import MIXED, PAPER_UNIT
from .size_claims import size_claims


def sizes(model: str, batch: int, dtype: str) -> dict[str, Any]:
    """Return rows by method, as ``methods``, and the published sizes of the model, as ``published``.

    A sixth of the layers of ams_kv has the larger budget. Raises Unsupported for a model of another family."""
    entry: ModelEntry = MODELS.get(model)
    if entry.paradigm != "next-scale":
        raise Unsupported(f"{model} is a {entry.paradigm} model.", remedy="Name a next-scale model, such as var-d30.")
    layout = entry.shape(entry.presets["paper"], batch)
    demanding_layers = layout.layers // 6
    width: torch.dtype = getattr(torch, dtype)
    return {"model": model, "batch": batch, "dtype": dtype, "demanding": demanding_layers, "rows": layout.rows, "layers": layout.layers,
            "scales": stated_scales(layout), "methods": _method_rows(layout, demanding_layers, width, entry),
            "published": [asdict(claim) for claim in size_claims(entry, width)]}


def _method_rows(layout: Layout, demanding: int, dtype: torch.dtype, entry: ModelEntry) -> list[dict[str, Any]]:
    """Return rows of all methods for the layout: ams_kv with ``demanding`` layers, others at the same bytes."""
    ams_kv = AMSKV(demanding=tuple(range(demanding)))
    per_layer = entries(ams_kv, layout) // layout.layers
    methods = {"full, last scale kept": Full(store_last=True), "full": Full(), f"ams_kv, {demanding} demanding layers": ams_kv}
    for name in METHODS:
        cls = METHODS.get(name)
        if layout.paradigm in cls.paradigms and cls not in (Full, AMSKV):
            methods |= _named(cls, per_layer, calibration_parameter(cls, entry))
    with_last, readable, widths = layout.layers * layout.visual, layout.layers * layout.cacheable, (dtype.itemsize, dtype.itemsize)

    def row(name: str, cached: int) -> dict[str, Any]:
        size, mixed = kv_bytes(layout, cached, widths), kv_bytes(layout, cached, MIXED)
        return {"method": name, "entries_per_layer": cached / layout.layers, "bytes": size, "gib": size / 2**30,
                "paper_unit": size / PAPER_UNIT, "share": cached / with_last, "share_of_full": cached / readable,
                "published_unit": mixed / PAPER_UNIT}

    return [row(name, entries(method, layout)) for name, method in methods.items()]


def _named(cls: type[Method], per_layer: int, calibration: dict[str, str]) -> dict[str, Method]:
    """Return a method by name, at ``per_layer`` entries or its own sizes; empty without a necessary calibration."""
    if issubclass(cls, Evicting):
        return {f"{cls.name}, B = {per_layer}": cls(B=per_layer)}
    return {} if issubclass(cls, Calibrated) and not calibration else {cls.name: cls.build(calibration)}
