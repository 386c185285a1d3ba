"""PyramidKV: SnapKV with more entries in early layers than in late ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..cache.layout import Layout, Site
from ..contract.heads import HeadGroups
from ..core.errors import BadBudget
from .base.evicting import visual_budget
from .registry import method
from .snapkv import SnapKV


@method("pyramidkv")
@dataclass
class PyramidKV(HeadGroups):
    """Gives layers budgets that fall linearly with depth, with a mean of ``mean`` entries, and selects entries as SnapKV does.

    Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling" (2024), §4.1: the last layer has
    ``mean`` / ``beta``, the first one so many that the mean is right. Adapted: budgets are whole lines, at least one above the ``alpha``
    latest entries.
    """

    source = "Cai et al. 2024 (PyramidKV), §4.1"

    mean: int = 0
    beta: float = 20.0
    alpha: int = 8

    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        return {"mean": visual_budget(budget, layout)}

    def resolve(self, layout: Layout) -> None:
        least = 1 - -self.alpha // layout.line
        if self.mean % layout.line or self.mean < least * layout.line:
            raise BadBudget(f"{self.name}: a mean of {self.mean} with alpha = {self.alpha} does not fit lines of {layout.line}.",
                            remedy=f"mean must be a multiple of {layout.line} and at least {least * layout.line}.")
        self.check_range("beta", self.beta >= 1, "Use 1 (equal layers) or more.")
        self.lines = pyramid(self.mean // layout.line, layout.layers, self.beta, least, layout.lines)
        super().resolve(layout)

    def served(self, layout: Layout, site: Site) -> Sequence[SnapKV]:
        return [SnapKV(B=self.lines[site.layer] * layout.line, alpha=self.alpha)] * layout.kv_heads


def pyramid(mean: int, layers: int, beta: float, least: int, most: int) -> list[int]:
    """Return whole lines per layer, falling linearly from the first one, whose sum is ``mean`` · ``layers``; ``least`` to ``most`` each."""
    last = max(float(least), mean / beta, 2.0 * mean - most)
    first, lines, total = 2 * mean - last, list[int](), 0.0
    for layer in range(layers):
        total += first + (last - first) * (layer / (layers - 1) if layers > 1 else 0.5)
        lines.append(int(total + 0.5) - sum(lines))
    return sorted(lines, reverse=True)
