"""Fewer scales: the simple way to save computation in a next-scale model."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..cache.layout import Layout
from ..roofline.flops_budget import fitted
from .base.saves_flops import SavesFlops
from .registry import method


@method("fewer_scales")
@dataclass
class FewerScales(SavesFlops):
    """Skips the last ``count`` scales.

    The sum of the token maps has the size of the last map from the start, since each map is resized to it, and is decoded as it is after
    the last scale that is generated. Noise belongs to positions, so the tokens of generated scales are the full cache's. The published code
    of Infinity has this as an argument, ``trunk_scale``; FastVAR (arXiv 2503.23367) skips two scales of 1024 pixels besides its pruning,
    SkipVAR (arXiv 2506.08908) one to three.

    For VAR, whose code has no such argument, the convolutions of skipped scales are left out too.
    """

    title = "fewer scales"
    sizes = ("count",)
    source = "the argument trunk_scale of Infinity's code; a part of FastVAR (arXiv 2503.23367) and SkipVAR (arXiv 2506.08908)"
    unstated = {"count": "set by the budget; FastVAR skips 2 scales of 1024 pixels, SkipVAR 1 to 3"}

    count: int = 0

    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return the fewest skipped scales within this fraction of an image's FLOPs."""
        most = len(layout.scales) - 1
        return {"count": most - fitted(self.name, lambda i: FewerScales(most - i), most, budget, layout)}

    def resolve(self, layout: Layout) -> None:
        most = len(layout.scales) - 1
        self.check_range("count", 0 <= self.count <= most, f"Use 0 … {most} of the {most + 1} scales, or a budget such as 1/2.")

    def scales(self, layout: Layout) -> int:
        return len(layout.scales) - self.count
