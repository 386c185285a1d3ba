"""Next-scale cells: every method of that family × its modes × codec × {MHA, GQA}."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cachemark.cache.layout import Layout
from cachemark.contract.method import Method
from cachemark.kit.driver import Place, Record, drive, watched
from cachemark.kit.next_scale import KV_HEADS, ScaleCell, ScaleFeed
from cachemark.methods.registry import METHODS

from .cells import ALONE, WHOLE


def contents_of(method: Method, layout: Layout) -> tuple[list[dict[Place, Tensor]], Any]:
    """Return the visual tokens of each site after each pass, (rows, kv_heads, live), and the method that was driven."""
    record = Record()
    driven = watched(method, record)
    drive(driven, layout, ScaleFeed(layout))
    return [{site: torch.stack(heads, 1) for site, heads in moment.contents.items()} for moment in record.moments], driven


# Modes of a method. One layer of three is demanding; online, the threshold lies inside the range of S of the feed.
MODES: dict[str, tuple[dict[str, Any], ...]] = {
    "ams_kv": ({"demanding": [1]}, {"demanding": [0, 2], "condensed": 0}, {"demanding": [], "c_min": 10, "c_max": 12},
               {"decide": "online", "theta": -1.9, "c_min": 21, "c_max": 46}),
    "full": ({}, {"store_last": True}),
    "window": ({}, {"keep_condition": False}),
    "scalekv": ({}, {"score": "softmax"}),
    "scale_groups": ({"remove": "condensed"}, {"remove": "intermediate"}, {"remove": "local"}),
}


def cells() -> list[ScaleCell]:
    """Return all cells of the registry."""
    classes: list[type[Method]] = [METHODS.get(name) for name in METHODS]
    return [ScaleCell(cls, tuple(mode.items()), codec, attention)
            for cls in classes if "next-scale" in cls.paradigms for number, mode in enumerate(MODES.get(cls.name, ({},)))
            for codec in ALONE for attention in KV_HEADS
            if codec in WHOLE or (number == 0 and attention == "gqa")]  # fmt: skip
