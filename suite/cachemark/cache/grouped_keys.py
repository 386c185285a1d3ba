"""KIVI keys: each channel shares a range among 32 consecutive tokens (Liu et al. 2024, §3.2).

Channels of keys differ far more from each other than tokens do. Tokens are stored unquantized until a group of 32 is full. Each entry
stores its arrival number, which locates its range after evictions; ranges stay for the whole generation.

Differs from the authors' code: theirs keeps the latest 128 keys and values unquantized, here the keys of the newest group and no values.
Next-token models only: the survivors of a scale differ from head to head, and masked models have no order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby

import torch
from torch import Tensor

from .arena import Memory
from .bank import SlotBank
from .codec import GROUP, levels, pack, unpack
from .kernels.record import Ranges, Stored
from .layout import Layout, RowRun, Site, Step
from .slot import Slot, require_room


class GroupedSlot(Slot):
    """Layer cache of a :class:`GroupedBank`."""

    bank: GroupedBank

    def append(self, k: Tensor, v: Tensor, condition: bool = False) -> None:
        """Write the condition or one token (rows, kv_heads, tokens, head_dim) at the tail."""
        assert condition or k.size(2) == 1, "tokens arrive one at a time"
        counts = [run.condition if condition else 1 for run in self.bank.runs]
        require_room(max(map(sum, zip(self.live, counts, strict=True))), self.bank.capacity)
        for part, codes in zip(self.v, self.bank.codec.encode(v), strict=True):
            for run, n, count in zip(self.bank.runs, self.live, counts, strict=True):
                part[run.rows, :, n : n + count] = codes[run.rows, :, :count]
        for number, run in enumerate(self.bank.runs):
            (self._condition if condition else self._token)(run, number, k[run.rows])

    def _token(self, run: RowRun, number: int, k: Tensor) -> None:
        """Write one token. Its arrival number is read on the device, so that the pass can be captured."""
        arrived, n = self.bank.arrived[run.start : run.start + 1], self.live[number]
        self.bank.newest[self.index, run.rows].index_copy_(2, arrived % GROUP, k)
        self.k[1][run.rows, :, n] = arrived.to(torch.int16)
        self.live[number] += 1

    def _condition(self, run: RowRun, number: int, k: Tensor) -> None:
        for first in range(0, run.condition, GROUP):
            last = min(first + GROUP, run.condition)
            self.bank.newest[self.index, run.rows, :, : last - first] = k[:, :, first:last]
            self.k[1][run.rows, :, first:last, 0] = torch.arange(first, last, dtype=torch.int16, device=k.device)
            self.live[number] = last
            if last - first == GROUP:
                self.bank.close(slice(self.index, self.index + 1), number, first // GROUP, last)
        self.bank.arrived[run.rows] = run.condition

    def read(self, run: RowRun, n: int) -> tuple[Tensor, Tensor]:
        """Return decoded keys and values of the first ``n`` entries of these rows."""
        values = self.bank.codec.decode(tuple(part[run.rows, :, :n] for part in self.v), self.bank.layout.dtype)
        return self.bank.decoded(slice(self.index, self.index + 1), run.rows, n)[0], values

    def stored(self, slot: Slot) -> Stored:
        bank = self.bank
        ranges = Ranges(bank.step[self.index], bank.least[self.index], bank.newest[self.index], bank.arrived)
        return super().stored(slot)._replace(ranges=ranges)


class GroupedBank(SlotBank):
    """A bank whose keys share ranges.

    ``k``: codes, two per byte, and arrival numbers. ``step``, ``least`` (sites, rows, kv_heads, groups, head_dim) fp16: the range of each
    channel of a group. ``newest`` (sites, rows, kv_heads, 32, head_dim): the group that is being filled. ``arrived`` (rows,) int64: tokens
    that had arrived before the pass.
    """

    def __init__(self, layout: Layout, sites: tuple[Site, ...], capacity: int, memory: Memory) -> None:
        super().__init__(layout, sites, capacity, memory)
        name, shape = f"{sites[0].stack}.{sites[0].layer}", (len(sites), layout.rows, layout.kv_heads)
        groups = math.ceil((layout.longest_condition + layout.visual) / GROUP)
        self.step, self.least = (memory.zeros(f"{part}.{name}", (*shape, groups, layout.head_dim), torch.float16, "slots")
                                 for part in ("step", "least"))
        self.newest = memory.zeros(f"newest.{name}", (*shape, GROUP, layout.head_dim), layout.dtype, "slots")
        self.arrived = memory.zeros(f"arrived.{name}", (layout.rows,), torch.int64)

    def slot(self, index: int) -> Slot:
        return GroupedSlot(self, index)

    def keys(self, sites: slice = slice(None), rows: slice = slice(None)) -> Tensor:
        return self.without_padding(self.decoded(sites, rows, max(self.live)), rows)

    def decoded(self, sites: slice, rows: slice, n: int) -> Tensor:
        """Return keys of the first ``n`` entries, (sites, rows, kv_heads, n, head_dim)."""
        arrival = self.k[1][sites, rows, :, :n].long()
        if len(set(self.live)) > 1:  # the shorter rows have dead entries among these, which may hold any number
            arrival = arrival.clamp(0, self.step.size(3) * GROUP - 1)
        group, place = arrival // GROUP, arrival % GROUP
        step, least = (_taken(part[sites, rows], group) for part in (self.step, self.least))
        old = (unpack(self.k[0][sites, rows, :, :n]).float() * step + least).to(self.layout.dtype)
        filling = group == (self.arrived[rows] // GROUP)[:, None, None, None]
        return torch.where(filling, _taken(self.newest[sites, rows], place), old)

    def end_step(self, step: Step) -> None:
        super().end_step(step)
        for number, (run, n) in enumerate(zip(self.runs, self.live, strict=True)):
            arrived = run.condition + (step.first + 1 if step.count else 0)
            self.arrived[run.rows] = arrived
            if step.count and arrived % GROUP == 0:
                self.close(slice(None), number, arrived // GROUP - 1, n)

    def close(self, sites: slice, number: int, group: int, live: int) -> None:
        """Quantize a full group: store its ranges, and the codes of its live entries of run ``number``."""
        rows = self.runs[number].rows
        codes, step, least = levels(self.newest[sites, rows], -2)
        self.step[sites, rows, :, group], self.least[sites, rows, :, group] = step.squeeze(-2), least.squeeze(-2)
        place = self.k[1][sites, rows, :, :live].long() - group * GROUP
        mine = (place >= 0) & (place < GROUP)
        live_keys = self.k[0][sites, rows, :, :live]
        live_keys.copy_(torch.where(mine, _taken(pack(codes), place.clamp(0, GROUP - 1)), live_keys))


def _taken(table: Tensor, places: Tensor) -> Tensor:
    return table.gather(-2, places.expand(*places.shape[:-1], table.size(-1)))


def banks(layout: Layout, capacity: Mapping[Site, int], memory: Memory) -> list[SlotBank]:
    """Return a bank for each group of sites with equal capacity (in entries)."""
    kind = GroupedBank if memory.codec.grouped else SlotBank
    ordered = sorted(capacity, key=lambda site: (capacity[site], site))
    return [kind(layout, tuple(sites), entries, memory) for entries, sites in groupby(ordered, key=capacity.__getitem__)]
