"""Where keys and values live.

The one rule: **live entries are always a prefix of the buffer.** K is cached after RoPE, so the order of entries is free.
Evicting m entries moves the last m live ones into the evicted places (one that is itself in the tail moves nothing), and the
next tokens are written at the tail. Only m entries move, shapes are static, and nothing dead is ever read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

from .chunking import chunks
from .codec import NATIVE, Codec, Parts
from .engine.engine import EAGER, Engine
from .layout import Layout, RowRun, Site, Step

INDEXING = 64  # bytes on the way for each entry that is evicted: several int64 indices


class Memory:
    """An arena: every tensor that a generation keeps, by name, and what bytes are counted from.

    It goes with the engine that runs the passes. A second generation of a case asks for the same names and gets the same storage,
    zeroed, so that what was recorded of the first one holds.
    """

    def __init__(self, device: torch.device | str = "cpu", codec: Codec = NATIVE, engine: Engine = EAGER) -> None:
        self.device = torch.device(device)
        self.codec = codec
        self.engine = engine
        self._held: dict[str, tuple[str, Tensor]] = {}
        self._given: set[str] = set()

    def another(self) -> Memory:
        """An empty one for another batch of the same case."""
        return Memory(self.device, self.codec, self.engine.another())

    def zeros(self, name: str, shape: Iterable[int], dtype: torch.dtype, kind: str = "state") -> Tensor:
        """A zeroed tensor. ``kind`` says where its bytes are counted: ``slots``, ``stage`` or ``state`` (a method's)."""
        shape = tuple(shape)
        assert name not in self._given, f"{name} is asked for twice in one generation"
        self._given.add(name)
        if name not in self._held:
            self._held[name] = (kind, torch.zeros(shape, dtype=dtype, device=self.device))
            return self._held[name][1]
        tensor = self._held[name][1]
        if tensor.shape != shape or tensor.dtype != dtype:
            raise ValueError(f"{name} was {tuple(tensor.shape)} {tensor.dtype}, now {shape} {dtype}: one Memory serves one case")
        return tensor.zero_()

    def hold(self, name: str, tensor: Tensor, kind: str) -> Tensor:
        """Count a tensor that was made elsewhere, in place of the one of that name so far: for the reference engine only."""
        self._held[name] = (kind, tensor)
        return tensor

    def begin(self) -> None:
        """A generation starts: each tensor may be asked for once more, and is zeroed then."""
        self._given.clear()

    def nbytes(self, kind: str) -> int:
        """Bytes allocated for that kind."""
        return sum(t.nbytes for held, t in self._held.values() if held == kind)

    def pointers(self) -> dict[str, int]:
        """Address of each tensor: equal for two generations of a case."""
        return {name: t.data_ptr() for name, (_, t) in self._held.items()}

    def slots(self, layout: Layout, capacity: Mapping[Site, int]) -> list[SlotBank]:
        """Storage for these sites, one bank per capacity, so that all sites of a bank can be evicted from at once."""
        ordered = sorted(capacity, key=lambda site: (capacity[site], site))
        return [SlotBank(layout, tuple(sites), entries, self) for entries, sites in groupby(ordered, key=capacity.__getitem__)]

    def stage(self, layout: Layout, entries: int) -> Stage:
        """The buffer that all layers of a stack share."""
        return Stage(layout, entries, self)


class SlotBank:
    """A bank: the slots of all sites that have one capacity.

    ``k``, ``v``: parts of the codec, each (sites, rows, kv_heads, capacity, width). ``visual``: (sites, rows, kv_heads,
    reach) int16, the index among visual tokens of each entry, −1 for a condition entry. ``live``: live entries of each run of
    rows, on the host. ``reach`` is the capacity or, where a scale that does not fit stands in the stage, the most entries that
    are ever seen at once: tables number those too.
    """

    def __init__(self, layout: Layout, sites: tuple[Site, ...], capacity: int, memory: Memory) -> None:
        self.layout, self.sites, self.capacity, self.codec = layout, sites, capacity, memory.codec
        self.runs = layout.runs
        self.reach = max(capacity, staged_entries(layout, capacity))
        shape = (len(sites), layout.rows, layout.kv_heads, capacity)
        name = f"{sites[0].stack}.{sites[0].layer}"
        self.k = self._parts(f"k.{name}", shape, memory)
        self.v = self._parts(f"v.{name}", shape, memory)
        self.visual = memory.zeros(f"visual.{name}", (*shape[:3], self.reach), torch.int16)
        self._base = memory.zeros(f"base.{name}", shape[:3], torch.int64)
        self._base += torch.arange(self._base.numel(), device=memory.device).view(shape[:3]) * capacity
        self._length = memory.zeros(f"length.{name}", (layout.rows,), torch.int64)
        self.followers: list[Tensor] = []
        self.slots = [Slot(self, index) for index in range(len(sites))]
        self.peak = 0

    def _parts(self, name: str, shape: tuple[int, ...], memory: Memory) -> Parts:
        widths = self.codec.widths(self.layout.head_dim, self.layout.dtype)
        return tuple(memory.zeros(f"{name}.{i}", (*shape, w), dtype, "slots") for i, (w, dtype) in enumerate(widths))

    @property
    def live(self) -> list[int]:
        """Live entries of each run; all sites of a bank agree between passes."""
        return self.slots[0].live

    @property
    def length(self) -> Tensor:
        """Live entries of each row, (rows,) int64 on the device."""
        for run, n in zip(self.runs, self.live, strict=True):
            self._length[run.rows] = n
        return self._length

    @property
    def live_visual(self) -> int:
        """Live visual entries per row where the condition is kept: the same for every row, head and site."""
        return self.live[0] - self.runs[0].condition

    @property
    def logical_bytes(self) -> int:
        """Bytes of live keys and values at the fullest pass so far."""
        return self._bytes(self.peak)

    @property
    def live_bytes(self) -> int:
        """Bytes of keys and values that live now: what was evicted is gone."""
        return self._bytes(self._entries())

    def _entries(self) -> int:
        """Live entries of all sites and rows."""
        return sum(n * (r.stop - r.start) for slot in self.slots for r, n in zip(self.runs, slot.live, strict=True))

    def _bytes(self, entries: int) -> int:
        return entries * self.layout.kv_heads * 2 * self.codec.entry_bytes(self.layout.head_dim, self.layout.dtype)

    def follow(self, table: Tensor) -> Tensor:
        """Let ``table`` (sites, rows, kv_heads, reach) move with the entries; a freed place is zeroed."""
        self.followers.append(table)
        return table

    def end_step(self, step: Step) -> None:
        """Note what the pass has written: numbers for its entries, and the fullest moment."""
        if not step.scale:
            self._number(step)
        self.peak = max(self.peak, self._entries())

    def _number(self, step: Step) -> None:
        fed = step.count or self.layout.longest_condition
        for run, n in zip(self.runs, self.live, strict=True):
            if step.count == 0:
                self.visual[:, run.rows, :, :n] = -1
            elif fed == 1:
                self.visual[:, run.rows, :, n - 1] = step.first
            else:
                self.visual[:, run.rows, :, n - fed : n] = torch.arange(step.first, step.first + fed, device=self.visual.device)

    def table(self) -> Tensor:
        """``visual`` of the live prefix, (sites, rows, kv_heads, longest), −1 where a shorter row has ended."""
        longest = max(self.live)
        if len(self.runs) == 1:
            return self.visual[..., :longest]
        place = torch.arange(longest, device=self.visual.device)
        dead = place >= self.length[:, None]
        return self.visual[..., :longest].masked_fill(dead[None, :, None], -1)

    def keys(self, sites: slice = slice(None), rows: slice = slice(None)) -> Tensor:
        """Decoded keys of the live prefix, (sites, rows, kv_heads, longest, head_dim); of some sites and rows where they are given."""
        longest = max(self.live)
        return self.codec.decode(tuple(part[sites, rows, :, :longest] for part in self.k), self.layout.dtype)

    def evict(self, places: Tensor) -> None:
        """Evict ``places`` (sites, rows, kv_heads, m): distinct indices of live entries. The tail moves into the holes."""
        sites, _, heads, m = places.shape
        widest = max(part.size(-1) * part.itemsize for part in (*self.k, *self.v))
        for number, (run, n) in enumerate(zip(self.runs, self.live, strict=True)):
            for some, rows in chunks(sites, run.stop - run.start, heads * m * (widest + INDEXING)):
                here = slice(run.start + rows.start, min(run.start + rows.stop, run.stop))
                self._fill(n, places[some, here], self._base[some, here, :, None])
            self._shorten(number, n, m)

    def evict_place(self, number: int, place: int) -> None:
        """Evict one entry of run ``number``, the same ``place`` in every site, row and head."""
        run, n = self.runs[number], self.live[number]
        if place != n - 1:
            for table in (*self.k, *self.v, self.visual, *self.followers):
                table[:, run.rows, :, place] = table[:, run.rows, :, n - 1]
        self._shorten(number, n, 1)

    def _fill(self, n: int, places: Tensor, base: Tensor) -> None:
        """Pair each hole with a survivor of the tail. Holes inside the tail are paired with themselves."""
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


class Slot:
    """Keys and values of one site: a view of its bank, with the live length of each run of rows."""

    def __init__(self, bank: SlotBank, index: int) -> None:
        self.bank, self.index = bank, index
        self.k, self.v = tuple(p[index] for p in bank.k), tuple(p[index] for p in bank.v)
        self.live = [0] * len(bank.runs)

    @property
    def visual(self) -> Tensor:
        """(rows, kv_heads, reach): index among visual tokens, −1 for a condition entry."""
        return self.bank.visual[self.index]

    def number(self, first: int, count: int) -> None:
        """Number the ``count`` entries behind the live ones ``first``, ``first`` + 1, …: a scale that is seen whole."""
        n = self.live[0]
        self.visual[:, :, n : n + count] = torch.arange(first, first + count, device=self.visual.device)

    def append(self, k: Tensor, v: Tensor, condition: bool = False) -> None:
        """Write (rows, kv_heads, tokens, head_dim) at the tail. Of a condition each row keeps its own number of entries."""
        counts = [run.condition if condition else k.size(2) for run in self.bank.runs]
        assert max(map(sum, zip(self.live, counts, strict=True))) <= self.bank.capacity, "a method declared too small a capacity"
        encode = self.bank.codec.encode
        for part, codes in zip((*self.k, *self.v), (*encode(k), *encode(v)), strict=True):
            for run, n, count in zip(self.bank.runs, self.live, counts, strict=True):
                part[run.rows, :, n : n + count] = codes[run.rows, :, :count]
        for number, count in enumerate(counts):
            self.live[number] += count

    def read(self, run: RowRun, n: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first ``n`` entries of these rows, decoded; a view where the codec is exact."""
        decode, dtype = self.bank.codec.decode, self.bank.layout.dtype
        prefix = (run.rows, slice(None), slice(n))
        return decode(tuple(p[prefix] for p in self.k), dtype), decode(tuple(p[prefix] for p in self.v), dtype)


    def absorb(self, stage: Stage, kept: Sequence[range] | Tensor) -> None:
        """Of what the stage shows, [live | own], keep these places in this order: ranges that hold for all rows and heads, or
        (rows, kv_heads, m) ascending. They become the live prefix; tables follow. All rows have one length here."""
        if isinstance(kept, Tensor):
            self._gather(stage, kept)
            self.live[0] = kept.size(-1)
            return
        at = 0
        for places in kept:
            if places.start != at:
                self._copy(stage, places, at)
            elif places.stop > self.live[0]:
                self._copy(stage, range(self.live[0], places.stop), self.live[0])
            at += len(places)
        self._clear(at)
        self.live[0] = at

    def _copy(self, stage: Stage, places: range, to: int) -> None:
        """Copy a stretch of the stage to ``to`` and further; a table's stretch may overlap its target, so it is read first."""
        source, target = slice(places.start, places.stop), slice(to, to + len(places))
        encode = self.bank.codec.encode
        for part, codes in zip((*self.k, *self.v), (*encode(stage.k[:, :, source]), *encode(stage.v[:, :, source])), strict=True):
            part[:, :, target] = codes
        for table in self._tables():
            table[:, :, target] = table[:, :, source].clone()

    def _gather(self, stage: Stage, kept: Tensor) -> None:
        encode, m = self.bank.codec.encode, kept.size(-1)
        wide = kept[..., None].expand(*kept.shape, stage.k.size(-1))
        for part, codes in zip((*self.k, *self.v), (*encode(stage.k.gather(2, wide)), *encode(stage.v.gather(2, wide))), strict=True):
            part[:, :, :m] = codes
        for table in self._tables():
            table[:, :, :m] = table.gather(2, kept)
        self._clear(m)

    def _tables(self) -> list[Tensor]:
        return [self.visual, *(table[self.index] for table in self.bank.followers)]

    def _clear(self, live: int) -> None:
        for table in self.bank.followers:
            table[self.index, :, :, live:] = 0


class Stage:
    """One buffer per stack, shared by all layers: a slot's entries in compute form, then the pass's own keys and values.

    Attention reads [slot | stage] as one stretch, and only what survives is written back to the slot. Without it a method
    would have to allocate in every slot what it claims to save.
    """

    def __init__(self, layout: Layout, entries: int, memory: Memory) -> None:
        shape = (layout.rows, layout.kv_heads, entries, layout.head_dim)
        self.k = memory.zeros("stage.k", shape, layout.dtype, "stage")
        self.v = memory.zeros("stage.v", shape, layout.dtype, "stage")
        self.own = 0

    def put(self, slot: Slot, k: Tensor | None = None, v: Tensor | None = None) -> None:
        """Lay out the slot's live prefix and behind it the pass's own ``k``, ``v`` (rows, kv_heads, tokens, head_dim)."""
        self.own = 0 if k is None else k.size(2)
        for run, n in zip(slot.bank.runs, slot.live, strict=True):
            self.k[run.rows, :, :n], self.v[run.rows, :, :n] = slot.read(run, n)
            if k is not None and v is not None:
                self.k[run.rows, :, n : n + self.own], self.v[run.rows, :, n : n + self.own] = k[run.rows], v[run.rows]

    def read(self, run: RowRun, n: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first ``n`` entries of the slot that was put, and the pass's own."""
        return self.k[run.rows, :, : n + self.own], self.v[run.rows, :, : n + self.own]


def staged_entries(layout: Layout, capacity: int) -> int:
    """The most entries that [live | own] of a slot of this capacity can have in a pass whose own do not all fit."""
    seen, most = 0, 0
    for side in layout.scales:
        own = side**2
        if seen + own > capacity:
            most = max(most, min(seen, capacity) + own)
        seen += own
    return most
