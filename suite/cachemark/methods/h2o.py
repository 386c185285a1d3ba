"""H2O: heavy hitters by accumulated attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .. import registry
from ..cache.geometry import Site, Step
from ..cache.method import Evicting, table
from ..cache.select import lowest
from ..cache.slot import Memory, Slot, Slots


@registry.methods.add("h2o")
@dataclass
class H2O(Evicting):
    """Half the budget for the most recent tokens, half for those with the largest attention mass so far.

    Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models" (NeurIPS 2023),
    Algorithm 1. The mass of a key is the sum, over all queries since it entered, of its softmax weight among all live keys,
    condition included. Differs from the authors' code: every row and K/V head scores for itself.
    """

    name: ClassVar[str] = "h2o"
    source: ClassVar[str] = "Zhang et al. 2023, Algorithm 1"
    edge: ClassVar[str] = "token"
    slack: ClassVar[int] = 1

    @property
    def needs_mass(self) -> bool:
        return True

    def prepare(self, slots: Slots, memory: Memory) -> None:
        self.mass = table(memory, slots, "mass")

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        assert mass is not None
        self.mass[slot.index, ..., : mass.size(-1)] += mass

    def evict(self, step: Step, slots: Slots) -> None:
        if slots.live_visual <= self.B:
            return
        visual = slots.table()
        protected = (visual < 0) | (visual > step.first - self.B // 2)
        score = self.mass[..., : visual.size(-1)].masked_fill(protected, float("inf"))
        slots.evict(lowest(score, visual, 1))
