"""Methods whose K/V heads keep different numbers of entries: real bytes for each head, in slots that are ragged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..cache.arena import Memory
from ..cache.attention import by_length
from ..cache.layout import Layout, Site, Step
from ..cache.ragged import Kept, RaggedSlot, RaggedStage, staged_entries
from .method import Method


@dataclass
class PerHead(Method):
    """A next-scale method that says for each head what stays of a scale. Every other method keeps its uniform slots: this is the only
    class that knows ragged ones.

    A subclass says :meth:`entries` and :meth:`kept`; both may depend on sizes and on what was measured of the weights, :meth:`kept` on
    tensors too, as long as how many entries stay does not.
    """

    paradigms = ("next-scale",)
    evicts = True

    def entries(self, layout: Layout, site: Site) -> int:
        """The most entries that all K/V heads of a site hold together behind any pass, of one row: what is allocated."""
        return layout.stored * layout.kv_heads

    def kept(self, site: Site, step: Step, slot: RaggedSlot, stage: RaggedStage, q: Tensor) -> Sequence[Kept]:
        """Of each head the places of [live | the scale's own] that stay; not asked behind the last scale, which nobody reads."""
        return [[range(n + step.count)] for n in slot.lengths]

    # -- on paper -----------------------------------------------------------------------------------------------------
    def capacity(self, layout: Layout, site: Site) -> int:
        """Entries of a head: the mean over the heads of a site, rounded up, for what compares sites and methods on paper."""
        return -(-self.entries(layout, site) // layout.kv_heads)

    # -- one generation -----------------------------------------------------------------------------------------------
    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        memory.begin()
        self.layout = layout
        self.resolve(layout)
        self.banks, self.slots, self.stage = [], {}, None
        sizes = {site: self.entries(layout, site) for site in sites}
        self.ragged = {site: RaggedSlot(layout, site, size, memory) for site, size in sizes.items()}
        self.shown = RaggedStage(layout, max(staged_entries(layout, size) for size in sizes.values()), memory)
        self._before = self.lengths
        self._fullest, self._high_water = 0, 0

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        slot, stage = self.ragged[site], self.shown
        stage.put(slot, step.first, k, v)
        out = by_length(q, stage)
        if not step.last:
            slot.absorb(stage, self.kept(site, step, slot, stage, q))
        return out

    def end_step(self, step: Step) -> None:
        """Close a pass: find the fullest moment, from lengths alone, since a recorded pass runs none of the code above."""
        held = sum(map(sum, self._before))
        for before, now in zip(self._before, self.lengths, strict=True):
            held += sum(now) - sum(before)
            self._high_water = max(self._high_water, held)
        self._fullest = max(self._fullest, held)
        self._before = self.lengths

    @property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """Live entries of each head of every site."""
        return tuple(tuple(slot.lengths) for slot in self.ragged.values())

    @lengths.setter
    def lengths(self, lengths: tuple[tuple[int, ...], ...]) -> None:
        for slot, live in zip(self.ragged.values(), lengths, strict=True):
            slot.lengths[:] = live

    @property
    def logical_bytes(self) -> int:
        return self._bytes(self._fullest)

    @property
    def high_water_bytes(self) -> int:
        """Bytes of live keys and values at the fullest moment between two layers of a pass: a layer grows before the next one shrinks."""
        return self._bytes(self._high_water)

    @property
    def live_bytes(self) -> int:
        return self._bytes(sum(map(sum, self.lengths)))

    def _bytes(self, entries: int) -> int:
        codec = next(iter(self.ragged.values())).codec
        return entries * self.layout.rows * codec.pair_bytes(self.layout.head_dim, self.layout.dtype)
