"""SnapKV: keep the entries that the latest queries attend to. Base of methods with other budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ..cache.kernels.selection import Pool
from ..cache.layout import Layout, Site
from ..contract.heads import HeadGroups
from ..core.errors import BadBudget
from .base.evicting import visual_budget
from .base.observing import Observing
from .registry import method


@method("snapkv")
@dataclass
class SnapKV(Observing):
    """Keeps the latest entries and those with the most attention from the ``alpha`` latest queries.

    Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation" (NeurIPS 2024), §4. Adapted: the paper compresses a prompt
    once, by its last tokens; here the last tokens of each line select the entries of the image that stay. Attention is pooled along
    positions. Differs from the authors' code: the softmax is over the entries that may be evicted, and heads that share keys vote together.
    """

    title = "SnapKV"
    source = "Li et al. 2024, §4"
    authors_code = "yes: FasterDecoding/SnapKV"

    pool: int = 5

    def resolve(self, layout: Layout) -> None:
        super().resolve(layout)
        self.check_range("pool", self.pool >= 1 and self.pool % 2 == 1, "Use an odd number.")

    def scored(self, q: Tensor, k: Tensor) -> Tensor:
        older = k[:, :, : k.size(2) - self.alpha]
        weights = (q.unflatten(1, (k.size(1), -1)) @ older.mT[:, :, None] * q.size(-1) ** -0.5).softmax(-1)
        return F.avg_pool1d(weights.sum(3).mean(2), self.pool, 1, self.pool // 2)

    def pooling(self) -> Pool:
        return Pool(self.pool)


@dataclass
class LineBudgets(HeadGroups):
    """Selects entries like SnapKV, ``mean`` per head on average.

    At least one line in addition to the ``alpha`` latest entries stays. A subclass defines :meth:`shares`.
    """

    mean: int = 0
    alpha: int = 8

    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        return {"mean": visual_budget(budget, layout)}

    def shares(self, layout: Layout, mean: int, least: int) -> Sequence[Sequence[int]]:
        """Return the lines of each K/V head of each layer, ``mean`` on average and ``least`` or more."""
        raise NotImplementedError

    def resolve(self, layout: Layout) -> None:
        least, line = 1 - -self.alpha // layout.line, layout.line
        if self.mean % line or self.mean < least * line:
            raise BadBudget(f"{self.name}: a mean of {self.mean} with alpha = {self.alpha} does not fit lines of {line}.",
                            remedy=f"mean must be a multiple of {line} and at least {least * line}.")
        self.lines = self.shares(layout, self.mean // line, least)
        super().resolve(layout)

    def served(self, layout: Layout, site: Site) -> Sequence[SnapKV]:
        return [SnapKV(B=lines * layout.line, alpha=self.alpha) for lines in self.lines[site.layer]]
