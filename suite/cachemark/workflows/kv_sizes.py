"""Bytes of keys and values of every method on a next-scale model, and which of the sizes that papers print follow from them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from ..cache.layout import Layout
from ..contract.method import Method
from ..core.errors import Unsupported
from ..methods.ams_kv import AMSKV
from ..methods.base.calibrated import Calibrated
from ..methods.base.evicting import Evicting
from ..methods.full import Full
from ..methods.registry import METHODS
from ..models.protocol import ModelEntry
from ..models.registry import MODELS
from ..roofline.kv_bytes import MIXED, PAPER_UNIT, entries, equal_widths, nbytes
from .least_times import check_demanding
from .size_claims import size_claims
from .stand_ins import calibration_knob, sixth


def sizes(model: str, batch: int, dtype: str, demanding: int | None = None) -> dict[str, Any]:
    """Rows by method, as ``methods``, and what papers print of the model, as ``published``. ``demanding`` layers of ams_kv have the larger
    budget; None is a sixth of them. Raises Unsupported for a model of another family, BadKnob for more layers than it
    has."""
    entry: ModelEntry = MODELS.get(model)
    if entry.paradigm != "next-scale":
        raise Unsupported(f"{model} is a {entry.paradigm} model.", remedy="--kv is for next-scale models, such as var-d30.")
    layout = entry.shape(entry.presets["paper"], batch)
    if demanding is not None:
        check_demanding(demanding, layout)
    count = sixth(layout) if demanding is None else demanding
    width: torch.dtype = getattr(torch, dtype)
    return {"model": model, "batch": batch, "dtype": dtype, "demanding": count, "rows": layout.rows, "layers": layout.layers,
            "scales": list(layout.scales), "methods": _methods(layout, count, width, entry),
            "published": [asdict(claim) for claim in size_claims(entry, width)]}


def _methods(layout: Layout, count: int, dtype: torch.dtype, entry: ModelEntry) -> list[dict[str, Any]]:
    """Every method that runs on the layout, ams_kv with ``count`` demanding layers and its rivals at the same bytes."""
    ours = AMSKV(demanding=tuple(range(count)))
    share = entries(ours, layout) // layout.layers
    built = {"full, last scale kept": Full(store_last=True), "full": Full(), f"ams_kv, {count} demanding layers": ours}
    for name in METHODS:
        cls = METHODS.get(name)
        if layout.paradigm in cls.paradigms and cls not in (Full, AMSKV):
            built |= _rival(cls, share, calibration_knob(cls, entry))
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
