"""Examples of next-scale methods, driven by random queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Grid, Layout, Site, Step, scale_names, scale_steps, squares
from ..contract.heads import PerHead
from ..contract.method import Method
from .common import KitRun, MethodCell, calibration, neutral_parameters
from .driver import drive

SIDES = (1, 2, 3, 4, 5, 6)  # 91 tokens; later steps read 55 of them
WIDE = ((1, 1), (1, 2), (2, 4), (3, 5), (4, 6), (5, 7))  # 85 tokens; later steps read 50 of them
HEADS, LAYERS, DIM = 4, 3, 16
DEMANDING, UNDEMANDING = -0.02, -0.004  # on either side of AMS-KV's threshold
BUDGET = Fraction(7, 11)  # 35 of 55: the method must evict from the fourth scale on
PER_HEAD_BUDGET = Fraction(5, 11)


def layout_of(
    kv_heads: int = 4, rows: int = 3, scales: Sequence[Grid] = squares(SIDES), layers: int = LAYERS, heads: int = HEADS,
) -> Layout:
    """Return a next-scale layout; each row is its own sample."""
    seeds = tuple(range(100, 100 + rows))
    return Layout("next-scale", (0,) * rows, 0, 0, heads, kv_heads, DIM, layers, seeds, (0,) * rows, scales=tuple(scales))


class ScaleFeed:
    """Random queries, keys and values of every step and site; ``rows`` selects and orders the rows."""

    def __init__(self, layout: Layout) -> None:
        draw = torch.Generator().manual_seed(0)
        self.rows: list[int] = list(range(layout.rows))
        self.tokens: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}
        for step in scale_steps(layout):
            for layer in range(layout.layers):
                q, k, v = (torch.randn(layout.rows, heads, step.count, layout.head_dim, generator=draw)
                           for heads in (layout.heads, layout.kv_heads, layout.kv_heads))  # fmt: skip
                self.tokens[step.index, layer] = 1.5 * q, k, v

    def at(self, step: Step, site: Site) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of a step at a site."""
        q, k, v = (part[self.rows] for part in self.tokens[step.index, site.layer])
        return q, k, v


@dataclass(frozen=True)
class ScaleCell(MethodCell):
    """One method in one mode, with one codec, on one kind of attention and size of layout."""

    scales: tuple[Grid, ...] = squares(SIDES)
    layers: int = LAYERS
    heads: int = HEADS

    @property
    def size(self) -> str:
        return f"{self.blocks(self.layers, self.heads)}, scales {', '.join(scale_names(self.scales))}, codec {self.codec}"

    @property
    def label(self) -> str:
        """Method, parameters, codec, attention and the shape of the maps."""
        return super().label + ("" if self.square else "-wide")

    @property
    def square(self) -> bool:
        """True if its maps are square, as in VAR."""
        return self.scales == squares([rows for rows, _ in self.scales])

    @property
    def seeds(self) -> Sequence[int]:
        return self.layout.seeds

    @property
    def smaller(self) -> Sequence[ScaleCell]:
        sizes = ((1, 1, 4), (1, 2, 5), (2, 2, 6))
        return [replace(self, layers=layers, heads=heads, scales=self.scales[:count]) for layers, heads, count in sizes]

    @property
    def per_head(self) -> bool:
        """True if heads keep different numbers of entries."""
        return issubclass(self.cls, PerHead)

    @property
    def layout(self) -> Layout:
        """Shape of the reference run; with grouped queries it has two K/V heads."""
        kv_heads = min(self.heads, 2) if self.attention == "gqa" else self.heads
        return layout_of(kv_heads, scales=self.scales, layers=self.layers, heads=self.heads)

    @property
    def passes(self) -> set[int]:
        return set(range(len(self.scales)))

    def at(self, budget: Fraction, neutral: Mapping[str, Any] | None = None) -> Method:
        """Return the method at a budget; if it needs facts, every second layer is demanding."""
        layout = self.layout
        own = {**calibration(self.cls, layout), **dict(self.mode)}
        fitted = {} if {"c_min", "c_max"} & own.keys() else self.cls.build(own).fit(budget, layout)
        method = self.cls.build({**fitted, **own, **(neutral or {})})
        if self.cls.profiler() is not None:
            by_layer = [DEMANDING if layer % 2 else UNDEMANDING for layer in range(layout.layers)]
            method.calibrate({"similarity": [[similarity] * (len(layout.scales) - 1) for similarity in by_layer]})
            method.resolve(layout)
        return method

    def tight(self) -> Method:
        return self.at((PER_HEAD_BUDGET if self.per_head else BUDGET) if self.cls.evicts else Fraction(1))

    def neutral(self) -> Method:
        return self.at(Fraction(1), neutral_parameters(self.cls))

    def generate(self, method: Method, memory: Memory, seeds: Sequence[int], forced: Tensor | None, with_logits: bool) -> KitRun:
        """Drive the method; a sample is a row of the feed."""
        layout, feed, zeros = self.layout, ScaleFeed(self.layout), (0,) * len(seeds)
        feed.rows = [self.seeds.index(seed) for seed in seeds]
        answers = drive(method, replace(layout, condition=zeros, seeds=tuple(seeds), branches=zeros), feed, memory=memory)
        return KitRun(method, memory, answers)
