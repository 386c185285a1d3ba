"""The full cache: every entry kept, attention on the live ones only. The baseline of every value."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..cache.layout import Layout, Site
from ..contract.method import Method
from ..core.errors import BadBudget, BadParameter
from .registry import method


@method("full")
@dataclass
class Full(Method):
    """Keeps everything that a later pass reads. The fastest plain cache we can write: preallocated, no mask, no padding, no
    concatenation.

    In a masked model every pass computes every token anew, so nothing is kept at all.

    ``store_last``: in a next-scale model, also keep the last scale, which nobody reads: the published code does.
    """

    paradigms = ("next-token", "next-scale", "masked")
    source = "the baseline"
    unstated = {"store_last": "ours: the published code of VAR keeps the last scale, which nobody reads"}

    store_last: bool = False

    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        if budget < 1:
            raise BadBudget(f"full: it keeps everything and cannot meet a budget of {budget}.", remedy="Its budget is 1.")
        return {}

    def resolve(self, layout: Layout) -> None:
        if self.store_last and not layout.scales:
            raise BadParameter("full: store_last is for next-scale models.", remedy="Leave it out.")

    def capacity(self, layout: Layout, site: Site) -> int:
        return layout.visual if self.store_last else super().capacity(layout, site)

    def horizon(self, first: int) -> int:
        """Every token that is left: nothing is ever evicted."""
        return self.layout.visual - first
