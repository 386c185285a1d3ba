"""Ada-KV: SnapKV with more entries in heads whose attention is spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..cache.layout import Layout, Site
from ..contract.heads import HeadGroups
from ..core.errors import BadBudget
from .base.calibrations import Calibrated
from .base.evicting import visual_budget
from .registry import method
from .snapkv import SnapKV


@method("adakv")
@dataclass
class AdaKV(Calibrated, HeadGroups):
    """Shares the budget of a layer among its heads so that they lose as little attention as possible, and selects entries as SnapKV does.

    Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM Inference" (2024), §3: entries go to
    the heads with the largest attention weights, ``floor`` of the mean to each head at least. Adapted: weights are measured once for the
    model (:attr:`parts`), since storage cannot depend on an image, and budgets are whole lines, one above the ``alpha`` latest entries at
    least.
    """

    source = "Feng et al. 2024 (Ada-KV), §3"
    unstated = {"calibration": "ours: the paper measures each prompt; here ten tuning seeds, conditional rows alone"}
    paradigms = ("next-token",)
    parts = ("concentration",)

    mean: int = 0
    floor: float = 0.2
    alpha: int = 8

    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        return {"mean": visual_budget(budget, layout)}

    def resolve(self, layout: Layout) -> None:
        least, line = 1 - -self.alpha // layout.line, layout.line
        if self.mean % line or self.mean < least * line:
            raise BadBudget(f"{self.name}: a mean of {self.mean} with alpha = {self.alpha} does not fit lines of {line}.",
                            remedy=f"mean must be a multiple of {line} and at least {least * line}.")
        self.check_range("floor", 0 <= self.floor <= 1, "Use a number from 0 to 1.")
        mean = self.mean // line
        self.lines = [shared(curves, mean, max(least, round(self.floor * mean))) for curves in self.facts(layout)["concentration"]]
        super().resolve(layout)

    def served(self, layout: Layout, site: Site) -> Sequence[SnapKV]:
        return [SnapKV(B=lines * layout.line, alpha=self.alpha) for lines in self.lines[site.layer]]


def shared(curves: Sequence[Sequence[float]], mean: int, least: int) -> list[int]:
    """Return the lines of each head, whose sum is ``mean`` per head; ``least`` to all each.

    ``curves[head][n]``: the attention that the strongest n + 1 lines of entries hold.
    """
    lines = [least] * len(curves)
    for _ in range(mean * len(curves) - sum(lines)):
        gains = [curve[n] - curve[n - 1] if n < len(curve) else -1.0 for curve, n in zip(curves, lines, strict=True)]
        lines[gains.index(max(gains))] += 1
    return lines
