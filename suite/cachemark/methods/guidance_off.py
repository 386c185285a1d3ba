"""Guidance off: the unconditional rows end before the last scales."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..cache.layout import Layout
from ..core.errors import BadParameter
from ..roofline.flops_budget import fitted
from .base.saves_flops import SavesFlops
from .registry import method


@method("guidance_off")
@dataclass
class GuidanceOff(SavesFlops):
    """Computes only conditional rows from scale ``start`` (from 0) on, and samples from their logits.

    The unconditional branch replacement of SkipVAR (arXiv 2506.08908), for a fixed scale. The temperature stays as it is, as in the
    authors' code. A budget is at least half of the FLOPs. VAR's guidance is strongest in its last scales, Infinity's is constant.

    Differs from the authors' code: any batch size and VAR are supported (theirs keeps the first row of a batch of one, on Infinity), and
    the storage of unconditional rows stays allocated.
    """

    title = "guidance off"
    sizes = ("start",)
    source = "SkipVAR (arXiv 2506.08908), its unconditional branch replacement at a fixed scale"
    unstated = {"start": "set by the budget; SkipVAR replaces in its last one, two or three scales"}

    start: int = 0

    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return the latest start within this fraction of an image's FLOPs."""
        return {"start": fitted(self.name, GuidanceOff, len(layout.scales), budget, layout)}

    def resolve(self, layout: Layout) -> None:
        most = len(layout.scales)
        self.check_range("start", 0 <= self.start <= most, f"Use 0 … {most}, the first scale without guidance, or a budget such as 2/3.")
        if not any(layout.branches):
            raise BadParameter("guidance_off: this sampling has no guidance, so there are no unconditional rows.",
                               remedy="Leave the method out, or raise cfg_scale.")

    def computed_rows(self, layout: Layout, scale: int) -> int:
        return layout.rows if scale < self.start else layout.batch
