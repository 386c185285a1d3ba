"""Full cache: every entry kept, attention on live entries only. The baseline of all values."""

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
    """Keeps everything that a later pass reads: preallocated, without mask, padding or concatenation.

    In a masked model every pass computes all tokens, so nothing is stored. ``store_last``: in a next-scale model, also store the last
    scale, as the published code does, although no pass reads it.
    """

    paradigms = ("next-token", "next-scale", "masked")
    source = "the baseline"
    fronts = True
    unstated = {"store_last": "ours: the published code of VAR keeps the last scale, which no pass reads"}

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
        """Return all remaining tokens: nothing is evicted."""
        return self.layout.visual - first
