"""Base of PyramidKV and Ada-KV: SnapKV whose layers or heads have budgets of their own, in whole lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...cache.layout import Layout, Site
from ...contract.heads import HeadGroups
from ...core.errors import BadBudget
from ..snapkv import SnapKV
from .evicting import visual_budget


@dataclass
class LineBudgets(HeadGroups):
    """Selects entries as SnapKV does, ``mean`` of them per head on average; at least one line above the ``alpha`` latest stays.

    A subclass defines :meth:`shares`.
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
