"""KeyDiff: keys that differ from the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ..cache.bank import SlotBank
from ..cache.layout import Step
from .base.evicting import KeyScored, newest
from .registry import method


@method("keydiff")
@dataclass
class KeyDiff(KeyScored):
    """Evicts the entries whose keys are most similar to the mean direction of all keys.

    The end of each line evicts one line of entries. Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM
    Inference in Resource-Constrained Environments" (2025), §3. Adapted: blocks are lines, and the mean is over visual keys.
    """

    title = "KeyDiff"
    source = "Park et al. 2025, §3"
    authors_code = "none: but NVIDIA/kvpress has one"

    def score(self, step: Step, slots: SlotBank) -> Tensor:
        unit = F.normalize(slots.keys().float(), dim=-1).masked_fill(slots.table()[..., None] < 0, 0)
        similar = F.cosine_similarity(unit, unit.sum(-2, keepdim=True), dim=-1)
        return -similar.masked_fill(newest(step, slots.table()), float("-inf"))
