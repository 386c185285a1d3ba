"""KV storage of one layer (live entries first), and the workspace for a scale before eviction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.errors import BadPlugin
from .arena import Memory
from .codec import Codec, Parts
from .kernels.record import Stored, lengths_of
from .layout import Layout, RowRun

if TYPE_CHECKING:
    from .bank import SlotBank


class Slot:
    """Keys and values of one site: a view of its bank, with the live length of each run of rows."""

    def __init__(self, bank: SlotBank, index: int) -> None:
        self.bank, self.index, self.runs = bank, index, bank.runs
        self.k, self.v = tuple(p[index] for p in bank.k), tuple(p[index] for p in bank.v)
        self.live = [0] * len(bank.runs)
        self._placed: tuple[Tensor, Tensor] | None = None

    @property
    def visual(self) -> Tensor:
        """Index of each entry among visual tokens, (rows, kv_heads, reach), −1 for the condition."""
        return self.bank.visual[self.index]

    def narrow(self, rows: int) -> None:
        """Reduce the slot to the first ``rows`` rows as one run; entries of the others are no longer live."""
        self.runs = (self.runs[0]._replace(stop=rows),)

    def number(self, first: int, count: int, places: Tensor | None = None) -> None:
        """Number the ``count`` entries after the live ones from ``first`` on, or by ``places`` (rows, count)."""
        n = self.live[0]
        if places is None:
            self.visual[:, :, n : n + count] = torch.arange(first, first + count, device=self.visual.device)
        else:
            self.visual[: len(places), :, n : n + count] = (first + places[:, None]).to(self.visual.dtype)

    def place(self, tokens: int) -> tuple[Tensor, Tensor] | None:
        """Return where the next tokens' keys and values lie, to be written there before :meth:`append`.

        (rows, kv_heads, tokens, head_dim) each; None where they are stored as codes, at several places, or do not fit.
        """
        n = self.live[0]
        if len(self.runs) > 1 or not self.takes(tokens):
            return None
        rows = self.runs[0].rows
        self._placed = self.k[0][rows, :, n : n + tokens], self.v[0][rows, :, n : n + tokens]
        return self._placed

    def takes(self, tokens: int) -> bool:
        """Return True if a kernel may write that many tokens after each row's live entries, as they are, before :meth:`extend`."""
        return self.bank.codec.exact and max(self.live) + tokens <= self.bank.capacity

    def extend(self, tokens: int) -> None:
        """Count the tokens that a kernel has written."""
        self.live[:] = [n + tokens for n in self.live]

    def append(self, k: Tensor, v: Tensor, condition: bool = False) -> None:
        """Write (rows, kv_heads, tokens, head_dim) at the tail; of a condition, each row's own length."""
        placed, self._placed = self._placed, None
        if placed is not None and k is placed[0] and v is placed[1]:
            self.live[0] += k.size(2)
            return
        counts = [run.condition if condition else k.size(2) for run in self.runs]
        require_room(max(map(sum, zip(self.live, counts, strict=True))), self.bank.capacity)
        encode = self.bank.codec.encode
        for part, codes in zip((*self.k, *self.v), (*encode(k), *encode(v)), strict=True):
            for run, n, count in zip(self.runs, self.live, counts, strict=True):
                part[run.rows, :, n : n + count] = codes[run.rows, :, :count]
        for number, count in enumerate(counts):
            self.live[number] += count

    def read(self, run: RowRun, n: int) -> tuple[Tensor, Tensor]:
        """Return decoded keys and values of the first ``n`` entries of these rows; a view for exact codecs."""
        decode, dtype = self.bank.codec.decode, self.bank.layout.dtype
        prefix = (run.rows, slice(None), slice(n))
        return decode(tuple(p[prefix] for p in self.k), dtype), decode(tuple(p[prefix] for p in self.v), dtype)

    def stored(self, slot: Slot) -> Stored:
        """Return where the live entries are stored, for kernels that read them there."""
        return Stored(self.k, self.v, *lengths_of(self.runs, self.live, self.visual.device))

    @property
    def live_visual(self) -> int:
        """Live visual entries per row, where the condition is kept."""
        return self.live[0] - self.bank.runs[0].condition

    def visual_keys(self) -> Tensor:
        """Return decoded keys of the live visual entries, (rows, kv_heads, visual, head_dim).

        Requires that the condition is stored.
        """
        parts = [self.read(run, n)[0][:, :, run.condition :] for run, n in zip(self.bank.runs, self.live, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def absorb(self, workspace: Workspace, survivors: Sequence[range] | Tensor) -> None:
        """Replace the live entries with the selected positions of the workspace [live | own].

        ``survivors``: ranges for all rows and heads, or (rows, kv_heads, m) ascending; entries are stored in this order. Tables follow. All
        rows have one length here.
        """
        if isinstance(survivors, Tensor):
            self._gather(workspace, survivors)
            self.live[0] = survivors.size(-1)
            return
        at = 0
        for places in survivors:
            if places.start != at:
                self._copy(workspace, places, at)
            elif places.stop > self.live[0]:
                self._copy(workspace, range(self.live[0], places.stop), self.live[0])
            at += len(places)
        self._clear(at)
        self.live[0] = at

    def _copy(self, workspace: Workspace, places: range, to: int) -> None:
        """Copy a range of the workspace to ``to``. A table's range may overlap its target, so it is cloned."""
        source, target = slice(places.start, places.stop), slice(to, to + len(places))
        for part, codes in self._surviving(workspace, places):
            part[:, :, target] = codes
        for table in self._tables():
            table[:, :, target] = table[:, :, source].clone()

    def _gather(self, workspace: Workspace, survivors: Tensor) -> None:
        m = survivors.size(-1)
        for part, codes in list(self._surviving(workspace, survivors)):
            part[:, :, :m] = codes
        for table in self._tables():
            table[:, :, :m] = table.gather(2, survivors)
        self._clear(m)

    def _surviving(self, workspace: Workspace, places: range | Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each part of keys and values with the codes of ``places``."""
        for parts, shown in ((self.k, workspace.k), (self.v, workspace.v)):
            stored = tuple(part[:, :, : self.live[0]] for part in parts)
            yield from zip(parts, surviving(self.bank.codec, stored, shown, places), strict=True)

    def _tables(self) -> list[Tensor]:
        return [self.visual, *(table[self.index] for table in self.bank.followers)]

    def _clear(self, live: int) -> None:
        for table in self.bank.followers:
            table[self.index, :, :, live:] = 0


def surviving(codec: Codec, stored: Parts, shown: Tensor, places: range | Tensor) -> Parts:
    """Return the parts of ``places`` of [live | own]: live codes as stored, own entries encoded.

    ``stored``: parts (rows, heads, live, width); ``shown``: decoded [live | own], (rows, heads, entries, head_dim). Encoding a decoded
    vector may give other codes, so an entry that survives many passes would drift.
    """
    live = stored[0].size(2)
    if isinstance(places, Tensor):
        codes = codec.encode(shown.gather(2, wide(places, shown)))
        if codec.exact or not live:
            return codes
        earlier, is_live = places.clamp_max(live - 1), (places < live)[..., None]
        return tuple(torch.where(is_live, part.gather(2, wide(earlier, part)), own) for part, own in zip(stored, codes, strict=True))
    first = places.start if codec.exact else max(places.start, min(live, places.stop))
    codes = codec.encode(shown[:, :, first : places.stop])
    if first == places.start:
        return codes
    return tuple(torch.cat((part[:, :, places.start : first], own), 2) for part, own in zip(stored, codes, strict=True))


def wide(places: Tensor, part: Tensor) -> Tensor:
    """Return ``places`` as an index of whole vectors of ``part``."""
    return places[..., None].expand(*places.shape, part.size(-1))


def require_room(needed: int, capacity: int) -> None:
    """Raise BadPlugin if ``needed`` entries do not fit into ``capacity``."""
    if needed > capacity:
        raise BadPlugin(f"{needed} entries do not fit into a layer cache of {capacity}.",
                        remedy="Set slack to the entries that are written before evict runs, such as slack = 1, or raise capacity.")


class Workspace:
    """Workspace shared by the layers of a stack: a decoded layer cache, then the pass's own entries.

    Attention reads [live | own] as one range, and only survivors are written back. Without it a method would have to allocate the entries
    that it claims to save in every layer.
    """

    def __init__(self, layout: Layout, entries: int, memory: Memory) -> None:
        shape = (layout.rows, layout.kv_heads, entries, layout.head_dim)
        self.k = memory.zeros("workspace.k", shape, layout.dtype, "workspace")
        self.v = memory.zeros("workspace.v", shape, layout.dtype, "workspace")
        self.own = 0

    def put(self, slot: Slot, k: Tensor | None = None, v: Tensor | None = None) -> None:
        """Lay out the live entries, followed by the pass's own ``k``, ``v``.

        ``k``, ``v``: (rows, kv_heads, tokens, head_dim).
        """
        self.own = 0 if k is None else k.size(2)
        for run, n in zip(slot.runs, slot.live, strict=True):
            self.k[run.rows, :, :n], self.v[run.rows, :, :n] = slot.read(run, n)
            if k is not None and v is not None:
                self.k[run.rows, :, n : n + self.own], self.v[run.rows, :, n : n + self.own] = k[run.rows], v[run.rows]

    def read(self, run: RowRun, n: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of the first ``n`` entries, and the pass's own."""
        return self.k[run.rows, :, : n + self.own], self.v[run.rows, :, : n + self.own]

    def stored(self, slot: Slot) -> Stored:
        """Return where [live | own] is stored, for kernels that read it there."""
        return Stored((self.k,), (self.v,), *lengths_of(slot.runs, [n + self.own for n in slot.live], self.k.device))


def workspace_entries(layout: Layout, capacity: int) -> int:
    """Return the most entries of [live | own] at this capacity in a pass whose own do not all fit."""
    earlier, most = 0, 0
    for own in layout.scale_tokens:
        if earlier + own > capacity:
            most = max(most, min(earlier, capacity) + own)
        earlier += own
    return most
