"""The base class of next-scale methods that save computation."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...cache.layout import Layout
from ...contract.method import Method
from ...core.spec import FLOPS
from ...roofline.flops_budget import budget_of


@dataclass
class SavesFlops(Method):
    """Base of next-scale methods with a budget in FLOPs; :meth:`fit` converts it to parameters."""

    paradigms = ("next-scale",)
    budget_kind = FLOPS

    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        return cls().fit(budget, layout)

    def own_budget(self, layout: Layout) -> Fraction:
        return budget_of(self, layout)
