"""Next-scale cells: every method of that family × its modes × codec × {MHA, GQA}."""

from __future__ import annotations

from typing import Any

from cachemark.contract.heads import PerHead
from cachemark.contract.method import Method
from cachemark.kit import next_scale
from cachemark.kit.next_scale import HEADS, KV_HEADS, LAYERS, SIDES, ScaleCell, drive, layout_of, run
from cachemark.kit.next_scale import ScaleFeed as Feed
from cachemark.kit.next_scale import ScaleRecord as Record
from cachemark.kit.next_scale import ScaleRun as Ran
from cachemark.kit.next_scale import ScaleShadow as Shadow
from cachemark.methods.registry import METHODS

from .cells import ALONE, WHOLE

__all__ = [
    "HEADS", "LAYERS", "SIDES", "Feed", "Ran", "Record", "ScaleCell", "Shadow", "cells", "drive", "label", "layout_of", "recorded", "run",
]

# Modes of a method. One layer of three is demanding; online, the threshold lies inside the range of S of the feed.
MODES: dict[str, tuple[dict[str, Any], ...]] = {
    "ams_kv": ({"demanding": [1]}, {"demanding": [0, 2], "condensed": 0}, {"demanding": [], "c_min": 10, "c_max": 12},
               {"decide": "online", "theta": -1.9, "c_min": 21, "c_max": 46}),
    "full": ({}, {"store_last": True}),
    "window": ({}, {"keep_condition": False}),
    "scalekv": ({}, {"score": "softmax"}),
    "scale_groups": ({"remove": "condensed"}, {"remove": "intermediate"}, {"remove": "local"}),
}


def cells(*, evicting: bool = False) -> list[ScaleCell]:
    """All cells, or those of methods that evict. Reads the registry, so a new method joins by being registered; one whose heads keep
    different numbers of entries joins those of :mod:`.per_head`."""
    known: list[type[Method]] = [METHODS.get(name) for name in METHODS]
    chosen = [cls for cls in known if "next-scale" in cls.paradigms and (cls.evicts or not evicting) and not issubclass(cls, PerHead)]
    return [ScaleCell(cls, tuple((k, v) for k, v in mode.items()), codec, attention)
            for cls in chosen for number, mode in enumerate(MODES.get(cls.name, ({},))) for codec in ALONE for attention in KV_HEADS
            if codec in WHOLE or (number == 0 and attention == "gqa")]  # fmt: skip


def label(cell: ScaleCell) -> str:
    return cell.label


def recorded(label: str) -> Ran:
    """The reference run of a cell at its tight budget."""
    return next_scale.recorded(next(cell for cell in cells() if cell.label == label))
