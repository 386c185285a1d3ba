"""Next-scale cells of methods whose heads keep different numbers of entries, and what shadows and records them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Layout, Site, Step
from ..cache.ragged import Extent, RaggedSlot, extents
from ..contract.heads import PerHead
from ..contract.method import Method
from ..methods.base.head_aware import HeadAware
from .common import poison
from .driver import Onlooker, Outputs, watched
from .next_scale import ScaleCell, ScaleFeed, drive, layout_of
from .oracle import TOLERANCE, Apart, apart, masked

BUDGET = Fraction(5, 11)


@dataclass(frozen=True)
class HeadCell(ScaleCell):
    """A method whose heads differ, in one mode, with one codec; where K/V heads are shared there are still two."""

    @property
    def layout(self) -> Layout:
        shared = self.attention == "gqa" and self.heads > 2
        return layout_of(2 if shared else self.heads, sides=self.sides, layers=self.layers, heads=self.heads)

    def tight(self) -> Method:
        return self.at(BUDGET)

    def run(self, method: Method, *watches: Onlooker, memory: Memory | None = None, feed: ScaleFeed | None = None,
            layout: Layout | None = None) -> Any:  # fmt: skip
        if not isinstance(method, PerHead):  # the full cache
            return super().run(method, *watches, memory=memory, feed=feed, layout=layout)
        return run(method, layout or self.layout, feed or ScaleFeed(self.layout), memory or self.memory(), *watches)

    @property
    def reference(self) -> Any:
        return recorded(self)

    def poison(self) -> Onlooker:
        return RaggedPoison()

    def declared(self, method: Method) -> dict[Site, int]:
        assert isinstance(method, PerHead)
        return {site: method.entries(method.layout, site) for site in method.ragged}

    def contents(self, record: Any) -> list[dict[Site, list[Tensor]]]:
        return list(record.contents)

    def expects_full_use(self, method: Method) -> bool:
        return True


class HeadShadow(Onlooker):
    """Evicting equals masking, head by head: a plain fp64 softmax over everything, in which what a head does not hold is hidden.

    ``worst``: the greatest deviation; ``first``: where it was first too large; ``hidden``: entries that were masked."""

    def __init__(self) -> None:
        self.worst, self.hidden = 0.0, 0
        self.first: Apart | None = None
        self._kept: dict[Site, tuple[Tensor, Tensor]] = {}
        self._chosen: dict[int, Tensor] = {}

    def before(self, method: Method, site: Site, step: Step) -> None:
        assert isinstance(method, PerHead)
        held = numbers(method.ragged[site])
        if isinstance(method, HeadAware):
            self._chosen.clear()
            method.chosen = self._noted(method)  # type: ignore[method-assign]
        self._visible = torch.stack([torch.zeros(n.size(0), step.first, dtype=torch.bool).scatter_(-1, n, True) for n in held], 1)

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        assert isinstance(method, PerHead)
        codec, before = method.ragged[site].codec, self._kept.get(site, (k[:, :, :0], v[:, :, :0]))
        keys, values = (torch.cat(pair, 2) for pair in zip(before, (k, v), strict=True))
        seen = torch.cat((self._visible, torch.ones(*self._visible.shape[:2], step.count, dtype=torch.bool)), -1)
        for head, tokens in self._chosen.items():
            seen[:, head] = torch.zeros_like(seen[:, head]).scatter_(-1, tokens, True)
        self.hidden += int((~seen).sum())
        expected = masked(q, keys, values, seen[:, :, None])
        self.worst = max(self.worst, float((expected - out.double()).abs().max()))
        self.first = self.first or apart(expected, out.double(), step, site, TOLERANCE)
        rounded = (codec.decode(codec.encode(part), k.dtype) for part in (k, v))
        self._kept[site] = tuple(torch.cat(pair, 2) for pair in zip(before, rounded, strict=True))  # type: ignore[assignment]

    def _noted(self, method: HeadAware) -> Callable[..., Any]:
        """``chosen``, which also notes the tokens that heads see where they do not see all that is there."""
        def chosen(site: Site, step: Step, part: Extent, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
            seen, kept = type(method).chosen(method, site, step, part, q)
            if seen is not None:
                tokens = part.of(method.shown.visual).long().gather(2, seen)
                self._chosen |= {part.first + at: tokens[:, at] for at in range(part.heads)}
            return seen, kept
        return chosen


def numbers(slot: RaggedSlot) -> list[Tensor]:
    """Visual tokens of each head, (rows, length) each."""
    return [one for extent in extents(slot.lengths) for one in extent.of(slot.visual).long().unbind(1)]


@dataclass
class HeadRecord(Onlooker):
    """Behind each pass: live entries of each head of each site, what they are, and the bytes that are said to live."""

    lengths: list[dict[Site, list[int]]] = field(default_factory=list)
    contents: list[dict[Site, list[Tensor]]] = field(default_factory=list)
    live_bytes: list[int] = field(default_factory=list)

    def settled(self, method: Method, step: Step) -> None:
        assert isinstance(method, PerHead)
        self.lengths.append({site: list(slot.lengths) for site, slot in method.ragged.items()})
        self.contents.append({site: [part.clone() for part in numbers(slot)] for site, slot in method.ragged.items()})
        self.live_bytes.append(method.live_bytes)


class RaggedPoison(Onlooker):
    """Spoils what lies behind the live extents of every site, and the whole stage, before a pass reaches a site."""

    spoiled = 0

    def before(self, method: Method, site: Site, step: Step) -> None:
        assert isinstance(method, PerHead)
        for slot in method.ragged.values():
            for part in (*slot.k, *slot.v, slot.visual):
                poison(dead := part[:, slot.live :])
                self.spoiled += dead.numel()
        for part in (method.shown.k, method.shown.v, method.shown.visual):
            poison(part)


@dataclass
class HeadRun:
    """A driven generation."""

    out: Outputs
    method: PerHead
    memory: Memory
    record: HeadRecord
    shadow: HeadShadow
    layout: Layout


def run(method: Method, layout: Layout, feed: ScaleFeed, memory: Memory, *watches: Onlooker) -> HeadRun:
    """Drive a method, recorded and shadowed."""
    record, shadow = HeadRecord(), HeadShadow()
    seen = watched(method, shadow, record, *watches)
    assert isinstance(seen, PerHead)
    return HeadRun(drive(seen, layout, feed, memory), seen, memory, record, shadow, layout)


@functools.cache
def recorded(cell: HeadCell) -> HeadRun:
    """The reference run of a cell at its tight budget."""
    return run(cell.tight(), cell.layout, ScaleFeed(cell.layout), cell.memory())
