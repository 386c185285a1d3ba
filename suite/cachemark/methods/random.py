"""Random eviction: the reference that a clever choice has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .. import registry
from ..cache import streams
from ..cache.geometry import Layout, Step
from ..cache.method import Evicting
from ..cache.slot import Memory, Slots


@registry.methods.add("random")
@dataclass
class Random(Evicting):
    """As soon as more than ``B`` visual entries live, one goes, uniform over those before the token just fed.

    Drawn for each row, layer and head from the sample's own stream, so a sample is treated alike in any batch.
    """

    name: ClassVar[str] = "random"
    source: ClassVar[str] = "the random baseline of LineAR, Table 3"
    edge: ClassVar[str] = "token"
    slack: ClassVar[int] = 1

    def begin(self, layout: Layout, sites, memory: Memory) -> None:
        super().begin(layout, sites, memory)
        self.seeds = streams.seeds_tensor(layout.seeds, memory.device)
        self.branches = streams.seeds_tensor(layout.branches, memory.device)
        condition = [run.condition for run in layout.runs for _ in range(run.start, run.stop)]
        self.condition = torch.tensor(condition, device=memory.device)[None, :, None, None]

    def evict(self, step: Step, slots: Slots) -> None:
        if slots.live_visual <= self.B:
            return
        sites, rows, heads, _ = slots.visual.shape
        key = streams.keys(self.seeds, "evict", step.first, branch=self.branches, inner=slots.sites[0].layer)
        place = streams.below(key, sites * heads, self.B).view(rows, sites, heads, 1).transpose(0, 1)
        slots.evict(place + self.condition)
