"""TOVA: keeps the entries that the latest query attends to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..cache.arena import Memory
from ..cache.bank import SlotBank
from ..cache.layout import Layout, Site, Step
from ..cache.slot import Slot
from ..contract.planning import MethodOverhead
from .base.evicting import Scored, newest, table
from .registry import method


@method("tova")
@dataclass
class TOVA(Scored):
    """Evicts, from all heads of a layer, the token with the least attention of the latest query.

    Oren et al., "Transformers are Multi-State RNNs" (EMNLP 2024), §3.2: attention is averaged over the heads of a layer.
    """

    title = "TOVA"
    source = "Oren et al. 2024, §3.2"
    authors_code = "yes: schwartz-lab-NLP/TOVA"
    needs_mass = True

    def prepare(self, slots: SlotBank, memory: Memory) -> None:
        self.mass = table(memory, slots, "mass")

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        assert mass is not None
        self.mass[slot.index, ..., : mass.size(-1)] = mass

    def graph_key(self, step: Step) -> None:
        """Return None: the masses of all live entries are stored."""

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Count writing and reading the mass of every live key."""
        attended = self.attended(layout, site, step)
        return MethodOverhead(0, super().overhead(layout, site, step).numbers + 2 * layout.kv_heads * attended)

    def score(self, step: Step, slots: SlotBank) -> Tensor:
        visual = slots.table()
        mass = self.mass[..., : visual.size(-1)]
        return mass.mean(2, keepdim=True).expand_as(mass).masked_fill(newest(step, visual), float("inf"))
