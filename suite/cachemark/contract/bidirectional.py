"""Full attention among the tokens of a pass, nothing kept: what a masked model does without any cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from ..cache.layout import Site, Step
from .method import Method


@dataclass
class Bidirectional(Method):
    """Every token of a pass sees every token of it. No slots; differentiable; serves training as it is."""

    paradigms: ClassVar[tuple[str, ...]] = ("masked",)

    @property
    def live_bytes(self) -> None:
        """A method that keeps anything here has a place for every token from the first pass on."""
        return None

    def graph_key(self, step: Step) -> None:
        """Nothing: the passes of the head are told by their inner step."""

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)
