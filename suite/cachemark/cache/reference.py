"""The papers' own kind of baseline, kept to show what a plain cache gains before any method is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .geometry import Layout, Site, Step
from .method import Method
from .slot import Memory

KERNEL = "sdpa-math, padded and masked"


@dataclass
class PaddedFull(Method):
    """LlamaGen's published generation cache: one padded buffer per layer, read whole under a boolean mask.

    Every pass attends over all round_up(condition + N, 8) places with the un-fused kernel, and copies K and V to the number
    of query heads first, as the published code does. It exists for comparison only.
    """

    name: ClassVar[str] = "full"
    source: ClassVar[str] = "LlamaGen's generate.py"

    @property
    def kernel(self) -> str:
        return KERNEL

    @property
    def logical_bytes(self) -> int:
        """Everything is read, so everything counts as live."""
        return self._memory.nbytes("slots")

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        memory.begin()
        self.layout, self._memory, self.banks = layout, memory, []
        places = -(-(layout.longest_condition + layout.visual) // 8) * 8
        shape = (layout.rows, layout.kv_heads, places, layout.head_dim)
        self.k = {site: memory.zeros(f"k.{site}", shape, layout.dtype, "slots") for site in sites}
        self.v = {site: memory.zeros(f"v.{site}", shape, layout.dtype, "slots") for site in sites}
        mask = memory.zeros("mask", (layout.rows, places, places), torch.bool)
        self.mask = mask.copy_(torch.ones(places, places, dtype=torch.bool, device=memory.device).tril())

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        start = step.first + self.layout.longest_condition if step.count else 0
        place = torch.arange(start, start + q.size(2), device=q.device)
        self.k[site][:, :, place] = k
        self.v[site][:, :, place] = v
        group = q.size(1) // k.size(1)
        keys, values = self.k[site].repeat_interleave(group, dim=1), self.v[site].repeat_interleave(group, dim=1)
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=self.mask[:, None, place])
