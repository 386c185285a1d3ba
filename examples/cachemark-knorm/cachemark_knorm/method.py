"""Eviction by the norm of keys: those with a small one attract attention (Devoto et al. 2024)."""

from dataclasses import dataclass

from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Step
from cachemark.core import registry
from cachemark.methods.base.evicting import Evicting, lowest


@registry.methods.add("knorm")
@dataclass
class KNorm(Evicting):
    """Keeps the B visual entries whose keys have the smallest L2 norm."""

    name = "knorm"
    source = "Devoto et al., A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression, EMNLP 2024"
    evict_after = "token"
    slack = 1  # the entry just written may stand above B until then

    def evict(self, step: Step, slots: SlotBank) -> None:
        if slots.live_visual > self.B:
            visual, norm = slots.table(), slots.keys().float().norm(dim=-1)
            slots.evict(lowest((-norm).masked_fill(visual < 0, float("inf")), visual, 1))  # the condition stays
