"""Cache groups (banks): keys and values of all layers of equal capacity, evicted from in one call.

**Live entries are always a prefix of the buffer.** K is stored after RoPE, so the order of entries is free. Evicting m entries moves the
last m live ones into the evicted positions, and the next tokens are written at the tail. Only m entries move, shapes are static, and dead
entries are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..core.errors import BadPlugin, Unsupported
from .arena import Memory
from .kernels import selection
from .kernels.record import lengths_of
from .layout import Layout, Site, Step
from .slot import Slot, wide, workspace_entries

TRANSIENT = 192 * 2**20
"""Bytes that a portion may need on the way. Results come on top of it."""


def chunks(sites: int, rows: int, each: int) -> Iterator[tuple[slice, slice]]:
    """Split work on sites × rows into portions, given the temporary bytes ``each`` of one row and site.

    A portion has all rows of some sites or some rows of one site, so that its storage is contiguous.
    """
    count = max(1, TRANSIENT // each)
    if count >= rows:
        for at in range(0, sites, count // rows):
            yield slice(at, at + count // rows), slice(0, rows)
        return
    for site in range(sites):
        for at in range(0, rows, count):
            yield slice(site, site + 1), slice(at, at + count)


HIDDEN = -2
"""Number of a visual entry that is stored and never read, because heads of one layer store equally many."""
INDEXING = 64  # bytes on the way for each entry that is evicted: several int64 indices


class SlotBank:
    """Storage of all sites with one capacity.

    ``k``, ``v``: parts of the codec, each (sites, rows, kv_heads, capacity, width). ``visual``: (sites, rows, kv_heads, reach) int16, the
    index of each entry among visual tokens, −1 for the condition or :data:`HIDDEN`. ``live``: live entries of each run of rows, on the
    host. ``reach``: the capacity or, where scales use the workspace, the most entries attended to at once; tables have that length.
    """

    def __init__(self, layout: Layout, sites: tuple[Site, ...], capacity: int, memory: Memory) -> None:
        self.layout, self.sites, self.capacity, self.codec = layout, sites, capacity, memory.codec
        self.runs = layout.runs
        self.reach = max(capacity, workspace_entries(layout, capacity))
        shape = (len(sites), layout.rows, layout.kv_heads, capacity)
        name = f"{sites[0].stack}.{sites[0].layer}"
        self.k, self.v = memory.pairs(name, shape, layout.head_dim, layout.dtype)
        self.visual = memory.zeros(f"visual.{name}", (*shape[:3], self.reach), torch.int16)
        self._base = memory.zeros(f"base.{name}", shape[:3], torch.int64)
        # In place: another product on the meta device would import PyTorch's compiler, which takes seconds.
        self._base += torch.arange(self._base.numel(), device=memory.device).view(shape[:3]).mul_(capacity)
        self._length = memory.zeros(f"length.{name}", (layout.rows,), torch.int64)
        self.followers: list[Tensor] = []
        self.slots = [self.slot(index) for index in range(len(sites))]
        self.peak = 0

    def slot(self, index: int) -> Slot:
        """Return the layer cache of a site by its number."""
        return Slot(self, index)

    @property
    def live(self) -> list[int]:
        """Live entries of each run; equal for all sites between passes."""
        return self.slots[0].live

    @property
    def length(self) -> Tensor:
        """Live entries of each row, (rows,) int64 on the device."""
        for run, n in zip(self.runs, self.live, strict=True):
            self._length[run.rows] = n
        return self._length

    @property
    def live_visual(self) -> int:
        """Live visual entries per row, where the condition is kept."""
        return self.live[0] - self.runs[0].condition

    @property
    def logical_bytes(self) -> int:
        """Bytes of live keys and values at the fullest pass so far."""
        return self._bytes(self.peak)

    @property
    def live_bytes(self) -> int:
        """Bytes of the keys and values that are live now."""
        return self._bytes(self._entries())

    def _entries(self) -> int:
        return sum(n * (r.stop - r.start) for slot in self.slots for r, n in zip(slot.runs, slot.live, strict=True))

    def _bytes(self, entries: int) -> int:
        kind, tokens = (self.layout.head_dim, self.layout.dtype), self.layout.longest_condition + self.layout.visual
        shared = len(self.sites) * self.layout.rows * self.codec.shared_bytes(*kind, tokens)
        return self.layout.kv_heads * (entries * self.codec.pair_bytes(*kind) + shared)

    def follow(self, table: Tensor) -> Tensor:
        """Move the values of ``table`` (sites, rows, kv_heads, reach) with the entries; zero freed positions."""
        self.followers.append(table)
        return table

    def end_step(self, step: Step) -> None:
        """Number the entries that the pass has written, and update the peak."""
        fed = step.count or self.layout.longest_condition
        for run, n in () if step.scale else zip(self.runs, self.live, strict=True):
            if step.count == 0:
                self.visual[:, run.rows, :, :n] = -1
            elif step.places:
                self.visual[:, run.rows, :, n - fed : n] = torch.tensor(step.places, dtype=torch.int16, device=self.visual.device)
            elif fed == 1:
                self.visual[:, run.rows, :, n - 1] = step.first
            else:
                self.visual[:, run.rows, :, n - fed : n] = torch.arange(step.first, step.first + fed, device=self.visual.device)
        self.peak = max(self.peak, self._entries())

    def roll_back(self, count: int) -> None:
        """Remove the last ``count`` entries of every row: rejected drafts, which count in the peak."""
        self.peak = max(self.peak, self._entries())
        for number, n in enumerate(self.live):
            self._shorten(number, n, count)

    def table(self) -> Tensor:
        """Return ``visual`` of the live prefix, (sites, rows, kv_heads, longest), −1 after a shorter row."""
        longest = max(self.live)
        if len(self.runs) == 1:
            return self.visual[..., :longest]
        place = torch.arange(longest, device=self.visual.device)
        dead = place >= self.length[:, None]
        return self.visual[..., :longest].masked_fill(dead[None, :, None], -1)

    def keys(self, sites: slice = slice(None), rows: slice = slice(None)) -> Tensor:
        """Return decoded keys of the live prefix, (sites, rows, kv_heads, longest, head_dim).

        They are 0 after the end of a shorter row.
        """
        longest = max(self.live)
        return self.without_padding(self.codec.decode(tuple(part[sites, rows, :, :longest] for part in self.k), self.layout.dtype), rows)

    def values(self, sites: slice = slice(None), rows: slice = slice(None)) -> Tensor:
        """Return decoded values of the live prefix, in the shape of :meth:`keys`."""
        longest = max(self.live)
        return self.without_padding(self.codec.decode(tuple(part[sites, rows, :, :longest] for part in self.v), self.layout.dtype), rows)

    def without_padding(self, x: Tensor, rows: slice) -> Tensor:
        """Return ``x`` (sites, rows, kv_heads, longest, …) with 0 after the end of shorter rows.

        If no row is shorter, return ``x`` itself.
        """
        if len(self.runs) == 1:
            return x
        dead = torch.arange(x.size(3), device=x.device) >= self.length[rows, None]
        return x.masked_fill(dead[None, :, None, :, None], 0)

    def evict(self, places: Tensor) -> None:
        """Evict ``places`` (sites, rows, kv_heads, m), distinct positions of live entries.

        Raises BadPlugin for another shape.
        """
        self._check_positions("evict", places)
        sites, _, heads, m = places.shape
        if not m:
            return
        widest = max(part.size(-1) * part.itemsize for part in (*self.k, *self.v))
        for number, (run, n) in enumerate(zip(self.runs, self.live, strict=True)):
            for some, rows in chunks(sites, run.stop - run.start, heads * m * (widest + INDEXING)):
                here = slice(run.start + rows.start, min(run.start + rows.stop, run.stop))
                self._fill(n, places[some, here], self._base[some, here, :, None])
            self._shorten(number, n, m)

    @property
    def selects(self) -> bool:
        """True if kernels select the entries that go, by :meth:`evict_lowest`."""
        return selection.selects(self.visual.device, self.layout.dtype, max(self.live))

    def evict_lowest(self, count: int, score: Callable[[slice, slice, Tensor | None], Tensor], each: int = 0) -> None:
        """Evict the ``count`` entries of lowest scores by kernels, as :func:`~.kernels.selection.lowest` would.

        ``score(sites, rows, lengths)`` returns the scores (sites, rows, kv_heads, live) of a portion, +inf for protected entries, and takes
        ``each`` temporary bytes for a row of a site. The condition stays.
        """
        longest, lengths = lengths_of(self.runs, self.live, self.visual.device)
        rows, heads = self.layout.rows, self.layout.kv_heads
        for some, here in chunks(len(self.sites), rows, each + 4 * heads * (longest + count)):
            own = None if lengths is None else lengths[here, 0]
            holes, sources = selection.choose(score(some, here, own), self.visual[some, here, :, :longest], own, count)
            for alike in self._alike:
                selection.move([part[some, here] for part in alike], holes, sources, own, longest)
        for number, n in enumerate(self.live):
            self._shorten(number, n, count)

    @property
    def _alike(self) -> Iterator[list[Tensor]]:
        """Yield keys with values where their parts are alike, and other parts and tables one by one, each with a last axis."""
        tables = [table[..., None] for table in self.followers]
        paired = [part.shape for part in self.k] == [part.shape for part in self.v] and len(self.k) == 1
        yield from [[*self.k, *self.v]] if paired else [[part] for part in (*self.k, *self.v)]
        yield from ([table] for table in tables)

    def merge(self, places: Tensor, into: Tensor, weights: Tensor, own: Tensor | None = None, *, keys: bool = False) -> None:
        """Add values of entries that will be evicted to values of entries that stay, as in CaM and D2O.

        The entries at ``into`` (sites, rows, kv_heads, r) become ``own`` · their value + ``weights`` · the values at ``places`` (sites,
        rows, kv_heads, m), both distinct positions of live entries. ``weights``: (sites, rows, kv_heads, r, m); ``own``: (sites, rows,
        kv_heads, r), 1 by default. With ``keys``, keys are merged in the same way. Raises BadPlugin for another shape, and Unsupported for
        ``keys`` with a codec whose keys share ranges.
        """
        self._check_positions("merge", places)
        self._check_positions("merge", into)
        if weights.shape != (*into.shape, places.size(-1)):
            raise BadPlugin(f"merge has weights of shape {tuple(weights.shape)}.", remedy=f"Use {(*into.shape, places.size(-1))}.")
        if keys and self.codec.grouped:
            raise Unsupported(f"{self.codec.name} shares the ranges of keys among tokens, so they cannot be merged.",
                              remedy="Use another codec, such as int4.")
        dtype = self.layout.dtype
        for parts in (self.v, self.k) if keys else (self.v,):
            receiving, leaving = (self.codec.decode(tuple(part.gather(3, wide(at, part)) for part in parts), dtype)
                                  for at in (into, places))
            factor = 1 if own is None else own[..., None].to(dtype)
            for part, codes in zip(parts, self.codec.encode(factor * receiving + weights.to(dtype) @ leaving), strict=True):
                part.scatter_(3, wide(into, part), codes)

    def _check_positions(self, call: str, places: Tensor) -> None:
        """Raise BadPlugin for positions of another shape or type."""
        expected = (len(self.sites), self.layout.rows, self.layout.kv_heads)
        if places.shape[:-1] != expected or not 0 <= places.size(-1) <= min(self.live) or places.dtype != torch.int64:
            raise BadPlugin(f"{call} takes positions of shape {tuple(places.shape)} and {places.dtype}.",
                            remedy=f"Use (layers, rows, kv_heads, count) = ({', '.join(map(str, expected))}, ≤ {min(self.live)}) "
                                   "in torch.int64.")

    def evict_visual(self, index: int) -> None:
        """Evict one visual entry, by its ``index`` after the condition, in every site, row and head."""
        for number, run in enumerate(self.runs):
            self.evict_place(number, run.condition + index)

    def evict_place(self, number: int, place: int) -> None:
        """Evict the entry at one ``place`` in every site, row and head of run ``number``."""
        run, n = self.runs[number], self.live[number]
        if place != n - 1:
            for table in (*self.k, *self.v, self.visual, *self.followers):
                table[:, run.rows, :, place] = table[:, run.rows, :, n - 1]
        self._shorten(number, n, 1)

    def _fill(self, n: int, places: Tensor, base: Tensor) -> None:
        """Move the surviving entries of the tail into the holes. A hole inside the tail maps to itself."""
        m = places.size(-1)
        holes = places.sort(-1).values
        gone = torch.zeros((*holes.shape[:-1], m + 1), dtype=torch.int8, device=holes.device)
        gone.scatter_(-1, (holes - (n - m - 1)).clamp_min(0), 1)
        survivors = gone[..., 1:].argsort(dim=-1, stable=True) + (n - m)
        target, source = (base + holes).flatten(), (base + survivors).flatten()
        for part in (*self.k, *self.v):
            rows = part.view(-1, part.size(-1))
            rows.index_copy_(0, target, rows.index_select(0, source))
        for table in (self.visual, *self.followers):
            cells = table.view(-1)
            cells.index_copy_(0, target, cells.index_select(0, source))

    def _shorten(self, number: int, n: int, m: int) -> None:
        for table in self.followers:
            table[:, self.runs[number].rows, :, n - m : n] = 0
        for slot in self.slots:
            slot.live[number] -= m
