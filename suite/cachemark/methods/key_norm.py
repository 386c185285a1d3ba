"""Key norms: keys of a small norm attract attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..cache.bank import SlotBank
from ..cache.layout import Step
from .base.evicting import KeyScored, newest
from .registry import method


@method("key_norm")
@dataclass
class KNorm(KeyScored):
    """Evicts the entries with the largest key norms, a line of them at each line's end.

    Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression" (EMNLP 2024), §3. Adapted: the paper compresses
    a prompt; here each line's end.
    """

    title = "key norms"
    source = "Devoto et al. 2024, §3"
    authors_code = "yes: alessiodevoto/l2compress"

    def score(self, step: Step, slots: SlotBank) -> Tensor:
        return -torch.linalg.vector_norm(slots.keys(), dim=-1, dtype=torch.float32).masked_fill(newest(step, slots.table()), float("-inf"))
