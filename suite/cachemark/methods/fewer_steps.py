"""Fewer steps: the simple way to save computation in a masked model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

from ..cache.layout import Layout
from ..cache.masked_layout import MaskedLayout
from ..roofline.flops_budget import budget_of, fitted
from .base.annealed import HEAD_PARAMETERS, Annealed
from .registry import method


@method("fewer_steps")
@dataclass
class FewerSteps(Annealed):
    """Generates the image in ``steps`` passes instead of the requested number, without a cache.

    The baseline of LazyMAR (arXiv 2503.12450), Table 1. Order and noise belong to the positions of a sample, so images are paired with the
    images of the requested number of passes. With ``head_annealing = "constant"`` the diffusion head also runs the fraction ``head_least``
    of its steps in every pass: the plain rival of ``disa``.
    """

    title = "fewer steps"
    sizes = ("steps",)
    source = "the baseline of LazyMAR (arXiv 2503.12450), Table 1"

    unstated = {"steps": "set by the budget; the paper's table has 32 and 16 of 64", **HEAD_PARAMETERS}

    steps: int = 0

    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        return cls().fit(budget, layout)

    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return the most passes within this fraction of an image's FLOPs."""
        shape = cast(MaskedLayout, layout)
        return {"steps": 1 + fitted(self.name, lambda i: replace(self, steps=1 + i), shape.steps - 1, budget, shape)}

    def resolve(self, layout: Layout) -> None:
        super().resolve(layout)
        requested = cast(MaskedLayout, layout).steps
        self.check_range("steps", 1 <= self.steps <= requested, f"Use 1 … {requested}, the requested steps, or a budget such as 1/2.")

    def own_budget(self, layout: Layout) -> Fraction:
        return budget_of(self, cast(MaskedLayout, layout))

    def passes(self, requested: int) -> int:
        return self.steps
