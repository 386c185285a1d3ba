"""SnapKV: what the latest queries attend to."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ..cache.layout import Layout
from .base.observing import Observing
from .registry import method


@method("snapkv")
@dataclass
class SnapKV(Observing):
    """Keeps the entries with the most attention of the ``alpha`` latest queries, pooled along positions, and the latest ones.

    Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation" (NeurIPS 2024), §4. Adapted: the paper compresses a prompt
    once, by its last tokens; here the last tokens of each line select what stays of the image. Differs from the authors' code: the softmax
    is over the entries that may go, and heads that share keys vote together.
    """

    source = "Li et al. 2024, §4"

    pool: int = 5

    def resolve(self, layout: Layout) -> None:
        super().resolve(layout)
        self.check_range("pool", self.pool >= 1 and self.pool % 2 == 1, "Use an odd number.")

    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        older = k[:, :, : k.size(2) - self.alpha]
        weights = (q.unflatten(1, (k.size(1), -1)) @ older.mT[:, :, None] * q.size(-1) ** -0.5).softmax(-1)
        return F.avg_pool1d(weights.sum(3).mean(2), self.pool, 1, self.pool // 2)
