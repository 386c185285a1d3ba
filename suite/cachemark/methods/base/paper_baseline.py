"""Full caches as published with the models, for comparison only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...cache.arena import Memory
from ...cache.kernels.plain import SDPA
from ...cache.layout import Layout, Site, Step
from ...contract.method import Bidirectional, Method


class PublishedCache(Method):
    """A full cache in its own tensors, as the authors wrote it."""

    name = "full"

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        memory.begin()
        self.layout, self._memory, self.banks = layout, memory, []

    @property
    def logical_bytes(self) -> int:
        """Bytes of all tensors, since all of them are read."""
        return self._memory.nbytes("slots")


@dataclass
class PaddedFull(PublishedCache):
    """LlamaGen's published cache: one padded buffer per layer, read whole under a boolean mask.

    Every pass attends over round_up(condition + N, 8) positions with the unfused kernel, and first copies K and V to the number of query
    heads.
    """

    source = "LlamaGen's generate.py"
    kernel = "sdpa-math, padded and masked"
    live_bytes = None  # the buffer is padded from the beginning

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        super().begin(layout, sites, memory)
        places = -(-(layout.longest_condition + layout.visual) // 8) * 8
        shape = (layout.rows, layout.kv_heads, places, layout.head_dim)
        self.k = {site: memory.zeros(f"k.{site}", shape, layout.dtype, "slots") for site in sites}
        self.v = {site: memory.zeros(f"v.{site}", shape, layout.dtype, "slots") for site in sites}
        mask = memory.zeros("mask", (layout.rows, places, places), torch.bool)
        self.mask = mask.copy_(torch.ones(places, places, dtype=torch.bool, device=memory.device).tril())
        for run in layout.runs:  # a shorter condition is padded to the longest
            self.mask[run.rows, :, run.condition : layout.longest_condition] = False

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        start = step.first + self.layout.longest_condition if step.count else 0
        place = torch.arange(start, start + q.size(2), device=q.device)
        self.k[site][:, :, place] = k
        self.v[site][:, :, place] = v
        group = q.size(1) // k.size(1)
        keys, values = self.k[site].repeat_interleave(group, dim=1), self.v[site].repeat_interleave(group, dim=1)
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=self.mask[:, None, place])


@dataclass
class ConcatFull(PublishedCache):
    """VAR's published cache: each layer concatenates all keys so far with its own in every scale.

    During a copy the old and new tensors both exist. Under the authors' fp16 autocast, normalized K is fp32 and stored so; here K is stored
    in fp32 for any dtype. The last scale is appended too, although no pass reads it.
    """

    source = "VAR's basic_var.py"
    kernel = SDPA.name

    @property
    def live_bytes(self) -> int:
        """Bytes allocated, since tensors grow with the image."""
        return self.logical_bytes

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        super().begin(layout, sites, memory)
        shape = (layout.rows, layout.kv_heads, 0, layout.head_dim)
        self.k = {site: torch.empty(shape, dtype=torch.float32, device=memory.device) for site in sites}
        self.v = {site: torch.empty(shape, dtype=layout.dtype, device=memory.device) for site in sites}

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.k[site] = self._memory.adopt(f"k.{site}", torch.cat((self.k[site], k.float()), 2), "slots")
        self.v[site] = self._memory.adopt(f"v.{site}", torch.cat((self.v[site], v), 2), "slots")
        return F.scaled_dot_product_attention(q, self.k[site].to(q.dtype), self.v[site])


REFERENCE: dict[str, type[Method]] = {"next-token": PaddedFull, "next-scale": ConcatFull, "masked": Bidirectional}
