"""Eviction by the norm of keys: those with a small one attract attention."""

from torch import Tensor

import cachemark as cm
from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Step


@cm.method("knorm")
class KNorm(cm.Scored):
    """Keep the entries with the smallest key norm (Devoto et al., 2024)."""

    def score(self, step: Step, slots: SlotBank) -> Tensor:  # (layers, rows, kv_heads, live); the lowest go
        return -slots.keys().norm(dim=-1)
