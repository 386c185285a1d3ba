"""Next-scale cells: every method of that family × its modes × codec × {MHA, GQA}, driven by random queries, keys and values."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codec import CODECS
from cachemark.cache.layout import Layout, Site, Step, scale_steps
from cachemark.contract.method import Method
from cachemark.core import registry

from .driver import Outputs, Watch, watched
from .oracle import masked

SIDES = (1, 2, 3, 4, 5, 6)  # 91 tokens, of which later passes read 55
HEADS, LAYERS, DIM = 4, 3, 16
KV_HEADS = {"mha": 4, "gqa": 1}
BUDGET = Fraction(7, 11)  # 35 of 55: from the fourth scale on something has to go
# Modes of a method. One layer of three is demanding; online, the threshold lies inside the range of S of the feed.
MODES: dict[str, tuple[dict[str, Any], ...]] = {
    "ams_kv": ({"demanding": [1]}, {"demanding": [0, 2], "condensed": 0}, {"demanding": [], "c_min": 10, "c_max": 12},
               {"decide": "online", "theta": -1.9, "c_min": 21, "c_max": 46}),
    "full": ({}, {"store_last": True}),
    "window": ({}, {"keep_condition": False}),
    "scale_groups": ({"remove": "condensed"}, {"remove": "intermediate"}, {"remove": "local"}),
}


def layout_of(kv_heads: int = 4, rows: int = 3, sides: Sequence[int] = SIDES) -> Layout:
    """Each row is a sample of its own."""
    seeds = tuple(range(100, 100 + rows))
    return Layout("next-scale", (0,) * rows, 0, 0, HEADS, kv_heads, DIM, LAYERS, seeds, (0,) * rows, scales=tuple(sides))


class Feed:
    """Queries, keys and values of every pass and site, drawn once, for rows that may be fed in another order."""

    def __init__(self, layout: Layout, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.rows: list[int] = list(range(layout.rows))
        self.tokens: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}
        for step in scale_steps(layout):
            for layer in range(layout.layers):
                q, k, v = (torch.randn(layout.rows, heads, step.count, layout.head_dim, generator=draw)
                           for heads in (layout.heads, layout.kv_heads, layout.kv_heads))  # fmt: skip
                self.tokens[step.index, layer] = 1.5 * q, k, v

    def at(self, step: Step, site: Site) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (part[self.rows] for part in self.tokens[step.index, site.layer])
        return q, k, v


def drive(method: Method, layout: Layout, feed: Feed, memory: Memory) -> Outputs:
    """Run all passes; what attention gave at each pass and site."""
    sites = [Site("decoder", layer) for layer in range(layout.layers)]
    method.begin(layout, sites, memory)
    out: Outputs = {}
    with torch.inference_mode():
        for step in scale_steps(layout):
            for site in sites:
                out[step.index, site] = method.attend(site, step, *feed.at(step, site))
            method.end_step(step)
    return out


@dataclass(frozen=True)
class ScaleCell:
    """One method in one mode, with one codec, on one kind of attention."""

    cls: type[Method]
    mode: tuple[tuple[str, Any], ...]
    codec: str
    attention: str

    @property
    def label(self) -> str:
        return "-".join([self.cls.name, *(f"{knob}={value}" for knob, value in self.mode), self.codec, self.attention])

    @property
    def layout(self) -> Layout:
        return layout_of(KV_HEADS[self.attention])

    @property
    def online(self) -> bool:
        return dict(self.mode).get("decide") == "online"

    def knobs(self, budget: Fraction) -> dict[str, Any]:
        asked = {} if {"c_min", "c_max"} & dict(self.mode).keys() else self.cls.knobs_for(budget, self.layout)
        return {**asked, **dict(self.mode)}

    def tight(self) -> Method:
        return self.cls.build(self.knobs(BUDGET if self.cls.evicts else Fraction(1)))

    def memory(self) -> Memory:
        return Memory("cpu", CODECS[self.codec])


def cells(*, evicting: bool = False) -> list[ScaleCell]:
    """All cells, or those of methods that evict. Reads the registry, so a new method joins by being registered."""
    known: list[type[Method]] = [registry.methods.get(name) for name in registry.methods]
    chosen = [cls for cls in known if "next-scale" in cls.paradigms and (cls.evicts or not evicting)]
    return [ScaleCell(cls, tuple((k, v) for k, v in mode.items()), codec, attention)
            for cls in chosen for mode in MODES.get(cls.name, ({},)) for codec in CODECS for attention in KV_HEADS]  # fmt: skip


def label(cell: ScaleCell) -> str:
    return cell.label


class Shadow(Watch):
    """Evicting equals masking: keeps all keys and values as the codec would hold them, and answers by a plain fp64 softmax that
    hides what the method did not hold before the pass. ``held`` reads ``slot.visual``; where a key lies is never asked."""

    def __init__(self) -> None:
        self.worst, self.hidden = 0.0, 0
        self._kept: dict[Site, tuple[Tensor, Tensor]] = {}
        self._seen: Tensor | None = None

    def before(self, method: Method, site: Site, step: Step) -> None:
        slot = method.slots[site]
        held = slot.visual[..., : slot.live[0]].long()
        self._seen = torch.zeros(*held.shape[:2], step.first, dtype=torch.bool).scatter_(-1, held, True)

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        assert self._seen is not None
        codec, dtype = method.slots[site].bank.codec, method.layout.dtype
        before = self._kept.get(site, (k[:, :, :0], v[:, :, :0]))
        keys, values = (torch.cat(pair, 2) for pair in zip(before, (k, v), strict=True))
        seen = torch.cat((self._seen, torch.ones(*self._seen.shape[:2], step.count, dtype=torch.bool)), -1)
        seen = seen & self.looked(method, step, seen.size(-1))
        self.hidden += int((~seen).sum())
        self.worst = max(self.worst, float((masked(q, keys, values, seen[:, :, None]) - out.double()).abs().max()))
        rounded = (codec.decode(codec.encode(part), dtype) for part in (k, v))
        self._kept[site] = tuple(torch.cat(pair, 2) for pair in zip(before, rounded, strict=True))  # type: ignore[assignment]

    @staticmethod
    def looked(method: Method, step: Step, tokens: int) -> Tensor:
        """What the method looks at of what it holds: all of it, but for the ablation that hides a group of scales."""
        groups = [getattr(method, "group", lambda *_: "")(scale, step.index) for scale in range(step.scale)]
        sizes = torch.tensor([side**2 for side in SIDES[: step.scale]])
        return torch.tensor([group != getattr(method, "remove", None) for group in groups]).repeat_interleave(sizes)[:tokens]


@dataclass
class Record(Watch):
    """Live entries of each site after each pass, and what they are."""

    live: list[dict[Site, int]] = field(default_factory=list)
    held: list[dict[Site, Tensor]] = field(default_factory=list)

    def settled(self, method: Method, step: Step) -> None:
        self.live.append({site: slot.live[0] for site, slot in method.slots.items()})
        self.held.append({site: slot.visual[..., : slot.live[0]].clone() for site, slot in method.slots.items()})


@dataclass
class Ran:
    """A driven generation."""

    out: Outputs
    method: Method
    memory: Memory
    record: Record
    shadow: Shadow


def run(cell: ScaleCell, method: Method, *watches: Watch, memory: Memory | None = None, feed: Feed | None = None,
        layout: Layout | None = None) -> Ran:  # fmt: skip
    memory, record, shadow, layout = memory or cell.memory(), Record(), Shadow(), layout or cell.layout
    seen = watched(method, shadow, record, *watches)
    out = drive(seen, layout, feed or Feed(cell.layout), memory)
    return Ran(out, seen, memory, record, shadow)


@functools.cache
def recorded(label: str) -> Ran:
    """The reference run of a cell at its tight budget."""
    cell = next(cell for cell in cells() if cell.label == label)
    return run(cell, cell.tight())
