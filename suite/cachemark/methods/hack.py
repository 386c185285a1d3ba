"""HACK: small caches for contextual heads, large ones for structural heads, also in attention."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ..cache.layout import Layout, Site, Step
from ..cache.ragged import Extent
from ..core.errors import BadBudget
from .base.head_aware import Cut, HeadAware, HeadClasses
from .registry import method

FIRST = 2  # scales whose tokens a structural head always keeps
PUBLISHED = Fraction(3, 10)  # of all tokens: the paper's 70 %


@method("hack")
@dataclass
class HACK(HeadAware):
    """Cuts every head to its budget before a scale attends: dropped entries are neither seen nor kept.

    Qin et al., "Head-Aware KV Cache Compression for Efficient Visual Autoregressive Modeling" (AAAI 2026, arXiv 2504.09261). *Contextual*
    heads, whose weights vary least between queries, have a small budget and keep the entries that a few queries attend to most;
    *structural* heads have a large one and always keep the first two scales and the newest. ``mean`` is the mean number of entries per
    head; the paper's ratio is 1 − ``mean`` / all tokens, including the last scale, which no pass reads: its 70 % is 49 % of the full cache
    on Infinity at 1024 pixels.

    Differs from the paper, whose code was not available: entries dropped in the last scale are not merged into others, since the variant of
    merging is not stated; heads stay in place.
    """

    title = "HACK"
    source = "HACK (arXiv 2504.09261); no code found; read from its abstract and from summaries"
    authors_code = "none"
    sizes = ("mean",)
    parts = ("variance",)
    unstated = {
        "contextual": "ours: the share of contextual heads is not stated for any model",
        "contrast": "ours: how much smaller the budget of contextual heads is, is not stated",
        "calibration": "ours: which samples, and whether unconditional rows count; here ten tuning seeds, conditional rows alone",
        "queries": "32 as stated; their even spacing over the scale is ours",
    }

    contrast: float = 0.5

    # -- planning -----------------------------------------------------------------------------------------------------
    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        self.check_parameters(layout)
        classes = self.classed(layout)
        most = budget * classes.pairs * layout.cacheable
        fitting = [mean for mean in range(1, layout.visual + 1) if self._allocated(classes, layout, mean) <= most]
        if not fitting or self._budgets(classes, layout, fitting[-1])[1] < _sink(layout):
            raise BadBudget(f"hack: a budget of {float(budget):.3g} leaves structural heads less than the {_sink(layout)} of the "
                            f"sinks, the first {FIRST} scales.", remedy="Use a larger budget.")
        return {"mean": fitting[-1]}

    def resolve(self, layout: Layout) -> None:
        self.check_parameters(layout)
        self.mean = self.mean or int(PUBLISHED * layout.visual)
        self.small, self.large = self._budgets(self.classed(layout), layout, self.mean)
        if self.large < _sink(layout) or not self.small:
            raise BadBudget(f"hack: mean = {self.mean} leaves structural heads {self.large} entries, less than the {_sink(layout)} of the "
                            f"sinks, the first {FIRST} scales.", remedy="Use a larger mean.")

    def check_parameters(self, layout: Layout) -> None:
        super().check_parameters(layout)
        self.check_range("contrast", 0 < self.contrast < 1, "Use a number between 0 and 1.")

    def _budgets(self, classes: HeadClasses, layout: Layout, mean: int) -> tuple[int, int]:
        return classes.budgets(mean, Fraction(str(self.contrast)), layout.visual)

    def _allocated(self, classes: HeadClasses, layout: Layout, mean: int) -> int:
        small, large = (min(budget, layout.cacheable) for budget in self._budgets(classes, layout, mean))
        return classes.few * small + (classes.pairs - classes.few) * large

    def _budget(self, *, contextual: bool) -> int:
        return self.small if contextual else self.large

    # -- on paper -----------------------------------------------------------------------------------------------------
    def entries(self, layout: Layout, site: Site) -> int:
        return sum(min(self._budget(contextual=few), layout.cacheable) for few in self.classes.contextual[site.layer])

    def kept_before(self, site: Site, step: Step, *, contextual: bool) -> int:
        return min(self._budget(contextual=contextual), step.first)

    # -- one generation -----------------------------------------------------------------------------------------------
    def cut(self, site: Site, step: Step, *, contextual: bool) -> Cut:
        """Return one budget for attention and cache."""
        budget = self._budget(contextual=contextual)
        return Cut(budget, budget)

    def scores(self, site: Site, step: Step, part: Extent, q: Tensor) -> Tensor:
        """Return the attention of a few queries; structural heads put the sinks and the newest scale first."""
        scores = self.subset_attention(q, part.view(self.shown.k), step).sum(2)
        if not self.is_contextual(site, part.first):
            sink, own = _sink(self.layout), part.length - step.count
            scores[..., :sink] = torch.inf
            if sink + step.count <= self.large:
                scores[..., own:] = torch.inf
        return scores


def _sink(layout: Layout) -> int:
    """Return the tokens of the first scales, which structural heads keep."""
    return sum(layout.scale_tokens[:FIRST])
