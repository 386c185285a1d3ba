"""H2O: heavy hitters by accumulated attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.bank import SlotBank
from ..cache.layout import Layout, Site, Step
from ..cache.slot import Slot
from ..contract.planning import MethodOverhead
from .base.evicting import Scored, lowest, table
from .registry import method


@method("h2o")
@dataclass
class H2O(Scored):
    """Keeps the most recent tokens (half of ``B``) and those with the largest attention mass so far.

    Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models" (NeurIPS 2023), Algorithm 1. The
    mass of a key is the sum, over all queries since it entered, of its softmax weight among all live keys, condition included. Differs from
    the authors' code: every row and K/V head has its own scores.

    In a next-scale model a scale enters as a whole and fine scales have most queries, so entries are ranked by mass divided by the number
    of queries that could see them, and recent ones are not protected.
    """

    title = "H2O"

    paradigms: ClassVar[tuple[str, ...]] = ("next-token", "next-scale")
    source = "Zhang et al. 2023, Algorithm 1"
    authors_code = "yes: FMInference/H2O"
    needs_mass = True

    def prepare(self, slots: SlotBank, memory: Memory) -> None:
        self.mass = table(memory, slots, "mass")
        if slots.layout.scales:
            self.queries = table(memory, slots, "queries")

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        assert mass is not None
        self.mass[slot.index, ..., : mass.size(-1)] += mass
        if step.scale:
            self.queries[slot.index, ..., : mass.size(-1)] += step.count

    def graph_key(self, step: Step) -> None:
        """Return None: masses are added to all live entries."""

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Count reading and writing the mass of every live key."""
        attended = self.attended(layout, site, step)
        return MethodOverhead(0, super().overhead(layout, site, step).numbers + 2 * layout.kv_heads * attended)

    def survivors(self, site: Site, step: Step, slot: Slot, total: int) -> Tensor:
        share = self.mass[slot.index, ..., :total] / self.queries[slot.index, ..., :total]
        gone = lowest(share, slot.visual[..., :total], total - self.B)
        stays = torch.ones_like(share, dtype=torch.int8).scatter_(-1, gone, 0)
        return stays.argsort(dim=-1, descending=True, stable=True)[..., : self.B]

    def score(self, step: Step, slots: SlotBank) -> Tensor:
        visual = slots.table()
        return self.mass[..., : visual.size(-1)].masked_fill(visual > step.first - self.B // 2, float("inf"))
