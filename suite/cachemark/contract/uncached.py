"""Attention without a cache: what a masked model does by default, and for training and teacher forcing in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache.layout import Site, Step
from .method import Method


@dataclass
class Uncached(Method):
    """All tokens pass at once and each sees those before it. Keeps nothing; differentiable."""

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.size(1) // k.size(1)
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Blockwise(Method):
    """All scales pass at once: tokens see their own scale and all earlier ones. ``sizes``: tokens of each scale. Keeps nothing;
    differentiable."""

    def __init__(self, sizes: Sequence[int], device: torch.device | str = "cpu") -> None:
        scale = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(list(sizes)))
        self.mask = (scale[:, None] >= scale[None]).to(device)

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


@dataclass
class Bidirectional(Method):
    """Every token of a pass sees every token of it. No slots; differentiable; serves training as it is."""

    paradigms = ("masked",)
    live_bytes = None  # a method that keeps anything here has a place for every token from the first pass on

    def graph_key(self, step: Step) -> None:
        """Nothing: the passes of the head are told by their inner step."""

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)
