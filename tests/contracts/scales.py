"""Next-scale cells: every method of that family × its modes × codec × {MHA, GQA}."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from cachemark.cache.layout import Site, Step
from cachemark.contract.heads import PerHead
from cachemark.contract.method import Method
from cachemark.kit.common import KitRun
from cachemark.kit.driver import Onlooker, drive
from cachemark.kit.next_scale import HEADS, KV_HEADS, LAYERS, SIDES, ScaleCell, layout_of
from cachemark.kit.next_scale import ScaleFeed as Feed
from cachemark.kit.oracle import Shadow
from cachemark.methods.registry import METHODS

from .cells import ALONE, WHOLE

__all__ = ["HEADS", "LAYERS", "SIDES", "Feed", "Record", "ScaleCell", "cells", "drive", "layout_of", "run"]


@dataclass
class Record(Onlooker):
    """The visual tokens of each site after each pass, (rows, kv_heads, live)."""

    contents: list[dict[Site, Tensor]] = field(default_factory=list)

    def after_end(self, method: Method, step: Step) -> None:
        self.contents.append({site: slot.visual[..., : slot.live[0]].clone() for site, slot in method.slots.items()})


def run(cell: ScaleCell, method: Method, *watches: Onlooker, **options: Any) -> KitRun:
    """A recorded run in the shadow of the oracle."""
    shadow = Shadow()
    return replace(cell.run(method, shadow, *watches, **options), shadow=shadow)


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
    """Return all cells, or those of methods that evict in uniform storage, from the registry."""
    classes: list[type[Method]] = [METHODS.get(name) for name in METHODS]
    chosen = [cls for cls in classes if "next-scale" in cls.paradigms and not (evicting and (issubclass(cls, PerHead) or not cls.evicts))]
    return [ScaleCell(cls, tuple((k, v) for k, v in mode.items()), codec, attention)
            for cls in chosen for number, mode in enumerate(MODES.get(cls.name, ({},))) for codec in ALONE for attention in KV_HEADS
            if codec in WHOLE or (number == 0 and attention == "gqa")]  # fmt: skip
