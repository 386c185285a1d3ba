"""Random eviction, the control for every scored method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..cache import random_streams as streams
from ..cache.arena import Memory
from ..cache.bank import SlotBank
from ..cache.layout import Site, Step
from ..cache.slot import Slot
from .base.evicting import Evicting
from .registry import method


@method("random")
@dataclass
class Random(Evicting):
    """Evicts a uniformly random entry whenever more than ``B`` visual entries are live.

    The token just fed is protected. Each row, layer and head has a random stream of its sample, so a sample is the same in any batch. In a
    next-scale model ``B`` random entries stay after each scale.
    """

    paradigms = ("next-token", "next-scale")
    source = "the random baseline of LineAR, Table 3"
    evict_after = "token"
    slack = 1

    def prepare(self, slots: SlotBank, memory: Memory) -> None:
        """Allocate, per row, the sample's seed, its branch, and where the visual entries start."""
        layout = slots.layout
        rows = zip(layout.seeds, layout.branches, layout.condition, strict=True)
        table = memory.zeros(f"streams.{slots.sites[0]}", (3, layout.rows), torch.int64)
        self.seeds, self.branches, self.condition = table.copy_(torch.tensor(list(rows)).T)

    def evict(self, step: Step, slots: SlotBank) -> None:
        if slots.live_visual <= self.B:
            return
        sites, rows, heads, _ = slots.visual.shape
        key = streams.keys(self.seeds, "evict", step.first, branch=self.branches, inner=slots.sites[0].layer)
        place = streams.below(key, sites * heads, self.B).view(rows, sites, heads, 1).transpose(0, 1)
        slots.evict(place + self.condition[:, None, None])

    def survivors(self, site: Site, step: Step, slot: Slot, total: int) -> Tensor:
        """Return the ``B`` entries with the largest random numbers."""
        heads = self.layout.kv_heads
        key = streams.keys(self.seeds, "evict", step.first, branch=self.branches, inner=site.layer)
        lots = streams.integers(key, heads * total).view(-1, heads, total)
        return lots.topk(self.B, -1).indices.sort(-1).values
