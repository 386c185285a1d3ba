"""Methods whose heads keep different numbers of entries, driven by random queries, keys and values, and what shadows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codec import CODECS
from cachemark.cache.layout import Layout, Site, Step, scale_steps
from cachemark.cache.ragged import Extent, Kept, RaggedSlot, RaggedStage, extents
from cachemark.contract.method import Method
from cachemark.contract.per_head import PerHead
from cachemark.core import registry
from cachemark.kit.driver import Onlooker as Watch
from cachemark.kit.driver import Outputs, watched
from cachemark.kit.next_scale import calibration
from cachemark.kit.oracle import masked
from cachemark.methods.base.head_aware import HeadAware

from .scales import Feed, drive, layout_of

PER_VECTOR = [name for name, codec in CODECS.items() if not codec.grouped]
KV_HEADS = (4, 2)


@dataclass
class Staggered(PerHead):
    """Each head keeps the first two scales, and of the rest as many of the newest as its number and its layer say; some none."""

    name = "staggered"

    def held(self, layer: int, head: int, total: int) -> int:
        return min(total, 5 + 9 * ((head + layer) % 3))

    def kept(self, site: Site, step: Step, slot: RaggedSlot, stage: RaggedStage, q: Tensor) -> Sequence[Kept]:
        return [self.places(self.held(site.layer, head, n + step.count), n + step.count) for head, n in enumerate(slot.lengths)]

    def places(self, held: int, total: int) -> Kept:
        return [range(total)] if held == total else [range(5), range(total - held + 5, total)]

    def entries(self, layout: Layout, site: Site) -> int:
        return sum(self.held(site.layer, head, layout.cacheable) for head in range(layout.kv_heads))


@dataclass
class Scored(Staggered):
    """As many, but those with the longest values: a choice that the host never sees, another in each row."""

    name = "scored"

    def kept(self, site: Site, step: Step, slot: RaggedSlot, stage: RaggedStage, q: Tensor) -> Sequence[Kept]:
        found: dict[int, Kept] = {}
        for extent in stage.extents:
            size = extent.of(stage.v).norm(dim=-1)
            for at in range(extent.heads):
                head = extent.first + at
                found[head] = size[:, at].topk(self.held(site.layer, head, extent.length), -1).indices.sort(-1).values
        return [found[head] for head in sorted(found)]


def made(cls: type[PerHead], kv_heads: int = 4, budget: Fraction = Fraction(5, 11)) -> PerHead:
    """A method of a test, or one of the registry at a budget at which something has to go."""
    if cls.name not in registry.methods:
        return cls()
    layout = layout_of(kv_heads)
    given = calibration(cls, layout)
    return cls.build({**given, **cls.build(given).fit(budget, layout)})


BUILT_IN = [cls for name in registry.methods if issubclass(cls := registry.methods.get(name), PerHead)]


class Shadow(Watch):
    """Evicting equals masking, head by head: a plain fp64 softmax over everything, in which what a head does not hold is hidden."""

    def __init__(self) -> None:
        self.worst, self.hidden = 0.0, 0
        self._kept: dict[Site, tuple[Tensor, Tensor]] = {}
        self._chosen: dict[int, Tensor] = {}

    def before(self, method: Method, site: Site, step: Step) -> None:
        assert isinstance(method, PerHead)
        held = numbers(method.ragged[site])
        if isinstance(method, HeadAware):
            self._chosen.clear()
            method.chosen = self._noted(method)  # type: ignore[method-assign]
        self._seen = torch.stack([torch.zeros(n.size(0), step.first, dtype=torch.bool).scatter_(-1, n, True) for n in held], 1)

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        assert isinstance(method, PerHead)
        codec, before = method.ragged[site].codec, self._kept.get(site, (k[:, :, :0], v[:, :, :0]))
        keys, values = (torch.cat(pair, 2) for pair in zip(before, (k, v), strict=True))
        seen = torch.cat((self._seen, torch.ones(*self._seen.shape[:2], step.count, dtype=torch.bool)), -1)
        for head, tokens in self._chosen.items():
            seen[:, head] = torch.zeros_like(seen[:, head]).scatter_(-1, tokens, True)
        self.hidden += int((~seen).sum())
        self.worst = max(self.worst, float((masked(q, keys, values, seen[:, :, None]) - out.double()).abs().max()))
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
    """What each head holds, (rows, length) visual tokens."""
    return [one for extent in extents(slot.lengths) for one in extent.of(slot.visual).long().unbind(1)]


@dataclass
class Record(Watch):
    """Behind each pass: live entries of each head of each site, what they are, and the bytes that are said to live."""

    lengths: list[dict[Site, list[int]]] = field(default_factory=list)
    held: list[dict[Site, list[Tensor]]] = field(default_factory=list)
    live_bytes: list[int] = field(default_factory=list)

    def settled(self, method: Method, step: Step) -> None:
        assert isinstance(method, PerHead)
        self.lengths.append({site: list(slot.lengths) for site, slot in method.ragged.items()})
        self.held.append({site: [part.clone() for part in numbers(slot)] for site, slot in method.ragged.items()})
        self.live_bytes.append(method.live_bytes)


@dataclass
class Ran:
    """A driven generation."""

    out: Outputs
    method: PerHead
    memory: Memory
    record: Record
    shadow: Shadow
    layout: Layout


def run(method: PerHead, codec: str = "native", kv_heads: int = 4, *watches: Watch, memory: Memory | None = None,
        rows: Sequence[int] = (0, 1, 2)) -> Ran:  # fmt: skip
    """A generation of some of the three rows."""
    record, shadow, memory, whole = Record(), Shadow(), memory or Memory("cpu", CODECS[codec]), layout_of(kv_heads)
    feed = Feed(whole)
    feed.rows = list(rows)
    zeros = (0,) * len(rows)
    layout = replace(whole, condition=zeros, seeds=tuple(whole.seeds[row] for row in rows), branches=zeros)
    seen = watched(method, shadow, record, *watches)
    assert isinstance(seen, PerHead)
    return Ran(drive(seen, layout, feed, memory), seen, memory, record, shadow, layout)


def planned(layout: Layout, method: Staggered) -> list[dict[Site, list[int]]]:
    """The lengths behind every pass, from the rule alone; the last scale is not kept."""
    found: list[dict[Site, list[int]]] = []
    for step in scale_steps(layout)[:-1]:
        total = step.first + step.count
        found.append({Site("decoder", layer): [method.held(layer, head, total) for head in range(layout.kv_heads)]
                      for layer in range(layout.layers)})
    return [*found, found[-1]]


