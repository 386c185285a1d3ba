"""Ragged storage for K/V heads with different numbers of entries, without padding or mask.

A site has one flat buffer with the heads' extents one after the other. A pass lays out [live | own] of every head in the workspace, heads
of one length side by side, attends there with one call per length, and writes the survivors back, packed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.errors import BadPlugin, Unsupported
from .arena import Memory
from .codec import Parts
from .kernels.record import Part, Stored, on_device
from .layout import Layout, Site
from .slot import surviving

Kept = Sequence[range] | Tensor
"""Places of [live | own] of one head that stay: ascending ranges for all rows, or (rows, m) ascending."""


class Extent(NamedTuple):
    """``heads`` heads from ``first`` on, with ``length`` entries each, at ``start`` of a flat buffer."""

    first: int
    heads: int
    start: int
    length: int

    def view(self, flat: Tensor) -> Tensor:
        """Return a view of these heads' entries, (rows, heads, length, …), of a buffer (rows, entries, …)."""
        return flat[:, self.start : self.start + self.heads * self.length].unflatten(1, (self.heads, self.length))

    def alike(self, key: Callable[[int], object]) -> Iterator[Extent]:
        """Yield the extents of neighboring heads with equal keys."""
        for _, group in groupby(range(self.first, self.first + self.heads), key):
            heads = list(group)
            yield Extent(heads[0], len(heads), self.start + (heads[0] - self.first) * self.length, self.length)


def extents(lengths: Sequence[int]) -> list[Extent]:
    """Return extents of neighboring heads with equal lengths, in order, packed."""
    runs, first, start = [], 0, 0
    for length, heads in groupby(lengths):
        count = len(list(heads))
        runs.append(Extent(first, count, start, length))
        first, start = first + count, start + count * length
    return runs


class RaggedSlot:
    """Keys and values of one site, with ``lengths[head]`` live entries per head.

    ``k``, ``v``: parts of the codec, each (rows, capacity, width). ``visual``: (rows, capacity) int16, the index of each entry among visual
    tokens. The live entries of all heads are a prefix of the buffer.
    """

    def __init__(self, layout: Layout, site: Site, capacity: int, memory: Memory) -> None:
        if memory.codec.grouped:
            raise Unsupported(f"{memory.codec.name} shares the ranges of keys among consecutive tokens, but here each head "
                              "keeps different ones.", remedy="Use another codec, such as int4.")
        self.layout, self.capacity, self.codec = layout, capacity, memory.codec
        name = f"{site.stack}.{site.layer}"
        self.k, self.v = memory.pairs(name, (layout.rows, capacity), layout.head_dim, layout.dtype)
        self.visual = memory.zeros(f"visual.{name}", (layout.rows, capacity), torch.int16)
        self.lengths = [0] * layout.kv_heads

    @property
    def live(self) -> int:
        """Live entries of all heads together, per row."""
        return sum(self.lengths)

    def read(self, extent: Extent) -> tuple[Tensor, Tensor]:
        """Return decoded keys and values of some heads, each (rows, heads, length, head_dim)."""
        decode, dtype = self.codec.decode, self.layout.dtype
        return decode(tuple(extent.view(p) for p in self.k), dtype), decode(tuple(extent.view(p) for p in self.v), dtype)

    def absorb(self, workspace: RaggedWorkspace, survivors: Sequence[Kept]) -> None:
        """Replace the live entries with these positions of the workspace, for each head."""
        counts = [_count(places) for places in survivors]
        if sum(counts) > self.capacity:
            raise BadPlugin(f"{sum(counts)} entries of all heads do not fit into {self.capacity}.", remedy="Return as many from entries.")
        stored = self._staying(self.k), self._staying(self.v)
        for extent in workspace.extents:
            for staged in extent.alike(lambda head: _identity(survivors[head])):
                to = Extent(staged.first, staged.heads, sum(counts[: staged.first]), counts[staged.first])
                self._write(workspace, staged, survivors[staged.first], to, stored)
        self.lengths[:] = counts

    def _staying(self, parts: Parts) -> Parts:
        """Return the live entries, copied where codes move, since new and old extents may overlap."""
        return parts if self.codec.exact else tuple(part[:, : self.live].clone() for part in parts)

    def _write(self, workspace: RaggedWorkspace, staged: Extent, survivors: Kept, to: Extent, stored: tuple[Parts, Parts]) -> None:
        earlier = Extent(staged.first, staged.heads, sum(self.lengths[: staged.first]), self.lengths[staged.first])
        whole = [survivors[:, None].expand(-1, staged.heads, -1)] if isinstance(survivors, Tensor) else survivors
        at = 0
        for places in whole:
            target = slice(at, at := at + _length(places))
            for parts, before, shown in zip((self.k, self.v), stored, (workspace.k, workspace.v), strict=True):
                codes = surviving(self.codec, tuple(earlier.view(part) for part in before), staged.view(shown), places)
                for part, code in zip(parts, codes, strict=True):
                    to.view(part)[:, :, target] = code
            numbers = staged.view(workspace.visual)
            to.view(self.visual)[:, :, target] = (
                numbers.gather(2, places) if isinstance(places, Tensor) else numbers[:, :, places.start : places.stop])


def _length(places: range | Tensor) -> int:
    return places.size(-1) if isinstance(places, Tensor) else len(places)


def _count(places: Kept) -> int:
    return sum(map(_length, [places] if isinstance(places, Tensor) else places))


def _identity(places: Kept) -> object:
    """Return a value that is equal for heads that keep the same positions."""
    return id(places) if isinstance(places, Tensor) else tuple(places)


class RaggedWorkspace:
    """Flat workspace shared by all layers: [live | own] of every head of the current site.

    ``k``, ``v``: (rows, entries, head_dim) in the model's dtype; ``visual``: (rows, entries) int16. ``extents`` locates neighboring heads;
    heads of one length are side by side.
    """

    def __init__(self, layout: Layout, entries: int, memory: Memory) -> None:
        self.k = memory.zeros("workspace.k", (layout.rows, entries, layout.head_dim), layout.dtype, "workspace")
        self.v = memory.zeros("workspace.v", (layout.rows, entries, layout.head_dim), layout.dtype, "workspace")
        self.visual = memory.zeros("workspace.visual", (layout.rows, entries), torch.int16)
        self.extents: list[Extent] = []

    def put(self, slot: RaggedSlot, first: int, k: Tensor, v: Tensor) -> None:
        """Lay out the live entries of a site, then the pass's own ``k``, ``v``, numbered from ``first`` on.

        ``k``, ``v``: (rows, kv_heads, tokens, head_dim).
        """
        own, start = k.size(2), 0
        numbers = torch.arange(first, first + own, device=k.device)
        self.extents = []
        for source in sorted(extents(slot.lengths), key=lambda extent: (extent.length, extent.first)):
            n, heads = source.length, slice(source.first, source.first + source.heads)
            here = source._replace(start=start, length=n + own)
            start += here.heads * here.length
            self.extents.append(here)
            if n:
                here.view(self.k)[:, :, :n], here.view(self.v)[:, :, :n] = slot.read(source)
                here.view(self.visual)[:, :, :n] = source.view(slot.visual)
            here.view(self.k)[:, :, n:], here.view(self.v)[:, :, n:] = k[:, heads], v[:, heads]
            here.view(self.visual)[:, :, n:] = numbers

    def parts(self) -> Iterator[Part]:
        """Yield the heads of each length with views of their keys and values."""
        for length, group in groupby(self.extents, key=lambda extent: extent.length):
            alike = list(group)
            heads = [head for extent in alike for head in range(extent.first, extent.first + extent.heads)]
            extent_of_all = Extent(heads[0], len(heads), alike[0].start, length)
            yield Part(slice(None), heads, extent_of_all.view(self.k), extent_of_all.view(self.v))

    def stored(self) -> Stored:
        """Return where the heads are stored, for kernels that read several lengths at once."""
        places = sorted((head, extent.start + (head - extent.first) * extent.length, extent.length)
                        for extent in self.extents for head in range(extent.first, extent.first + extent.heads))
        lengths, starts = (on_device(tuple(place[i] for place in places), self.k.device)[None] for i in (2, 1))
        return Stored((self.k[:, None],), (self.v[:, None],), max(place[2] for place in places), lengths, starts)


def workspace_entries(layout: Layout, capacity: int) -> int:
    """Return the most entries in the workspace for a site whose buffer has ``capacity`` entries."""
    earlier, most = 0, 0
    for own in layout.scale_tokens:
        most = max(most, min(earlier * layout.kv_heads, capacity) + own * layout.kv_heads)
        earlier += own
    return most
