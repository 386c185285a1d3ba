"""Ragged slots: keys and values of sites whose K/V heads keep different numbers of entries, without padding and without a mask.

A site has one flat buffer, in which the extents of its heads lie one behind the other. A pass lays [live | own] of every head out in
the stage, heads of one length side by side, attends there with one call per length, and writes what survives back, packed anew. So
nothing moves in place, no hole is ever left, and the buffer is as large as the most that its heads hold together behind any pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.errors import Unsupported
from .arena import Memory
from .codec import Widths
from .layout import Layout, Site

Kept = Sequence[range] | Tensor
"""Places of [live | own] of one head that stay: ascending ranges for all rows, or (rows, m) ascending."""


class Extent(NamedTuple):
    """Neighbouring heads ``first`` … ``first + heads − 1`` of ``length`` entries each, from entry ``start`` of a flat buffer on."""

    first: int
    heads: int
    start: int
    length: int

    def of(self, flat: Tensor) -> Tensor:
        """A view of these heads' entries, (rows, heads, length, …), of a flat buffer (rows, entries, …)."""
        return flat[:, self.start : self.start + self.heads * self.length].unflatten(1, (self.heads, self.length))


def extents(lengths: Sequence[int]) -> list[Extent]:
    """Neighbours of one length, in the order of heads, packed from the beginning of a buffer."""
    runs, first, start = [], 0, 0
    for length, heads in groupby(lengths):
        count = len(list(heads))
        runs.append(Extent(first, count, start, length))
        first, start = first + count, start + count * length
    return runs


class RaggedSlot:
    """Keys and values of one site, of each of whose heads ``lengths[head]`` entries live.

    ``k``, ``v``: parts of the codec, each (rows, capacity, width). ``visual``: (rows, capacity) int16, the index among visual tokens of
    each entry. The live entries of all heads are a prefix of the buffer.
    """

    def __init__(self, layout: Layout, site: Site, capacity: int, memory: Memory) -> None:
        if memory.codec.grouped:
            raise Unsupported(f"{memory.codec.name} shares the ranges of keys among tokens that arrive together, and here each head keeps "
                              "others of them.", remedy="Take another codec, such as int4.")
        self.layout, self.capacity, self.codec = layout, capacity, memory.codec
        name = f"{site.stack}.{site.layer}"
        self.k = self._parts(f"k.{name}", self.codec.key_widths, memory)
        self.v = self._parts(f"v.{name}", self.codec.widths, memory)
        self.visual = memory.zeros(f"visual.{name}", (layout.rows, capacity), torch.int16)
        self.lengths = [0] * layout.kv_heads

    def _parts(self, name: str, widths: Widths, memory: Memory) -> tuple[Tensor, ...]:
        shape = self.layout.rows, self.capacity
        parts = enumerate(widths(self.layout.head_dim, self.layout.dtype))
        return tuple(memory.zeros(f"{name}.{i}", (*shape, width), dtype, "slots") for i, (width, dtype) in parts)

    @property
    def live(self) -> int:
        """Live entries of all heads together, of one row."""
        return sum(self.lengths)

    def read(self, extent: Extent) -> tuple[Tensor, Tensor]:
        """Keys and values of some heads, decoded, each (rows, heads, length, head_dim)."""
        decode, dtype = self.codec.decode, self.layout.dtype
        return decode(tuple(extent.of(p) for p in self.k), dtype), decode(tuple(extent.of(p) for p in self.v), dtype)

    def absorb(self, stage: RaggedStage, survivors: Sequence[Kept]) -> None:
        """Of what the stage shows, keep these places of each head."""
        counts = [_count(places) for places in survivors]
        assert sum(counts) <= self.capacity, "a method declared too small a capacity"
        for staged, first, heads in self._alike(stage, survivors):
            start = sum(counts[:first])
            self._write(stage, staged, survivors[first], Extent(first, heads, start, counts[first]))
        self.lengths[:] = counts

    @staticmethod
    def _alike(stage: RaggedStage, survivors: Sequence[Kept]) -> Iterator[tuple[Extent, int, int]]:
        """Neighbouring heads that lie together in the stage and keep the same places: where they lie, the first of them, how many."""
        for staged in stage.extents:
            first, end = staged.first, staged.first + staged.heads
            while first < end:
                heads = 1
                while first + heads < end and _same(survivors[first], survivors[first + heads]):
                    heads += 1
                yield staged._replace(first=first, heads=heads, start=staged.start + (first - staged.first) * staged.length), first, heads
                first += heads

    def _write(self, stage: RaggedStage, staged: Extent, survivors: Kept, to: Extent) -> None:
        encode = self.codec.encode
        if isinstance(survivors, Tensor):
            wide = survivors[:, None, :, None].expand(-1, -1, -1, stage.k.size(-1))
            k, v = encode(staged.of(stage.k).gather(2, wide)), encode(staged.of(stage.v).gather(2, wide))
            for part, codes in zip((*self.k, *self.v), (*k, *v), strict=True):
                to.of(part).copy_(codes)
            to.of(self.visual).copy_(staged.of(stage.visual).gather(2, survivors[:, None]))
            return
        at = 0
        for places in survivors:
            source, target = slice(places.start, places.stop), slice(at, at + len(places))
            k, v = encode(staged.of(stage.k)[:, :, source]), encode(staged.of(stage.v)[:, :, source])
            for part, codes in zip((*self.k, *self.v), (*k, *v), strict=True):
                to.of(part)[:, :, target] = codes
            to.of(self.visual)[:, :, target] = staged.of(stage.visual)[:, :, source]
            at += len(places)


def _count(places: Kept) -> int:
    return places.size(-1) if isinstance(places, Tensor) else sum(map(len, places))


def _same(first: Kept, second: Kept) -> bool:
    return first is second or (not (isinstance(first, Tensor) or isinstance(second, Tensor)) and list(first) == list(second))


class RaggedStage:
    """One flat buffer, shared by all layers: [live | own] of every head of the site at work, heads of one length side by side.

    ``k``, ``v``: (rows, entries, head_dim) in the model's dtype; ``visual``: (rows, entries) int16. ``extents``: where neighbouring
    heads lie.
    """

    def __init__(self, layout: Layout, entries: int, memory: Memory) -> None:
        self.k = memory.zeros("stage.k", (layout.rows, entries, layout.head_dim), layout.dtype, "stage")
        self.v = memory.zeros("stage.v", (layout.rows, entries, layout.head_dim), layout.dtype, "stage")
        self.visual = memory.zeros("stage.visual", (layout.rows, entries), torch.int16)
        self.extents: list[Extent] = []

    def put(self, slot: RaggedSlot, first: int, k: Tensor, v: Tensor) -> None:
        """Lay out what lives in a slot and behind it a pass's own ``k``, ``v`` (rows, kv_heads, tokens, head_dim), numbered from
        ``first`` on."""
        own, start = k.size(2), 0
        numbers = torch.arange(first, first + own, device=k.device)
        self.extents = []
        for source in sorted(extents(slot.lengths), key=lambda extent: (extent.length, extent.first)):
            n, heads = source.length, slice(source.first, source.first + source.heads)
            here = source._replace(start=start, length=n + own)
            start += here.heads * here.length
            self.extents.append(here)
            if n:
                here.of(self.k)[:, :, :n], here.of(self.v)[:, :, :n] = slot.read(source)
                here.of(self.visual)[:, :, :n] = source.of(slot.visual)
            here.of(self.k)[:, :, n:], here.of(self.v)[:, :, n:] = k[:, heads], v[:, heads]
            here.of(self.visual)[:, :, n:] = numbers

    def by_length(self) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Heads of one length with their keys and values, (rows, heads, length, head_dim): views, since they lie side by side."""
        for length, group in groupby(self.extents, key=lambda extent: extent.length):
            alike = list(group)
            heads = [head for extent in alike for head in range(extent.first, extent.first + extent.heads)]
            whole = Extent(heads[0], len(heads), alike[0].start, length)
            yield heads, whole.of(self.k), whole.of(self.v)


def staged_entries(layout: Layout, capacity: int) -> int:
    """The most entries that the stage can show of a site whose buffer holds ``capacity``: no head has more than it has seen."""
    earlier, most = 0, 0
    for side in layout.scales:
        most = max(most, min(earlier * layout.kv_heads, capacity) + side**2 * layout.kv_heads)
        earlier += side**2
    return most
