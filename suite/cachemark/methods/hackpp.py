"""HACK++: separate budgets for attention and cache, shared out by the reliance of later scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Layout, Site, Step
from ..cache.ragged import Extent
from ..contract.planning import largest
from ..core.errors import BadBudget
from .base import calibrations
from .base.head_aware import Cut, HeadAware, HeadClasses
from .registry import method

PUBLISHED = Fraction(1, 10)  # of all tokens: the paper's η_c
SEEN = 3  # times the mean: its main setting attends to 30 % and keeps 10 %


@method("hackpp")
@dataclass
class HACKPlusPlus(HeadAware):
    """Attends to the ``attention_budget`` best entries of each head and keeps ``mean`` on average.

    Qin et al., "HACK++" (arXiv 2606.08302), the extension of HACK (arXiv 2504.09261). Heads keep more where later scales rely more on a
    layer and class of heads. A *contextual* head scores an entry by the mean attention of a few queries, pooled over neighbors; a
    *structural* one by the norm of its value, times the mean attention to a token of its scale. Its η_a and η_c are ``attention_budget``
    and ``mean`` over all tokens, including the last scale, which no pass reads: η_c = 10 % is 16.4 % of the full cache on Infinity at 1024
    pixels.

    Differs from the paper, whose code was not available: budgets are rounded down to whole entries, at least one and at most all entries
    of a head; neither the first scales nor the newest always stay, since no such rule is stated; heads stay in place.
    """

    title = "HACK++"
    source = "HACK++ (arXiv 2606.08302); no code found; read from its abstract and from summaries"
    authors_code = "none"
    sizes = ("mean",)
    parts = ("variance", "mass")
    structural_asks = False
    unstated = {
        "contextual": "ours: the share of contextual heads is not stated for any model",
        "calibration": "ours: which samples, and whether unconditional rows count; here ten tuning seeds, conditional rows alone. "
                       "The factor of structural scores is the mean attention per token of a scale",
        "queries": "ours: as in HACK; not stated again",
        "pool": "ours: over how many neighbours the largest score is taken is not stated; here neighbours in the cache",
        "exponent": "ours: the power of reliance, τ, is not stated",
        "attention_budget": "ours: three times `mean`, as 30 % and 10 % in its main setting",
    }

    pool: int = 5
    exponent: float = 1.0
    attention_budget: int = 0

    # -- planning -----------------------------------------------------------------------------------------------------
    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return the largest mean within the budget."""
        self.check_parameters(layout)
        most = budget * layout.layers * layout.kv_heads * layout.cacheable
        mean = largest(0, layout.cacheable, lambda mean: sum(self._planned(layout, mean).rooms) <= most)
        if not mean:
            raise BadBudget(f"hackpp: a budget of {float(budget):.3g} is less than one entry of {layout.cacheable} for each head.",
                            remedy="Use a larger budget.")
        return {"mean": mean}

    def resolve(self, layout: Layout) -> None:
        self.check_parameters(layout)
        self.mean = self.mean or max(1, int(PUBLISHED * layout.visual))
        unlimited = layout.visual if self.mean >= layout.cacheable else SEEN * self.mean
        self.attention_budget = self.attention_budget or min(unlimited, layout.visual)
        self.plan = self._planned(layout, self.mean)

    def check_parameters(self, layout: Layout) -> None:
        super().check_parameters(layout)
        self.check_range("pool", self.pool >= 1 and self.pool % 2 == 1, "Use an odd number, 1 or more.")
        self.check_range("exponent", self.exponent >= 0, "Use 0 or more.")
        self.check_range("attention_budget", 0 <= self.attention_budget <= layout.visual, f"Use 1 … {layout.visual} tokens.")

    def _planned(self, layout: Layout, mean: int) -> RelianceBudgets:
        return _planned(self.classed(layout), self.calibration, layout.scale_tokens, mean, self.exponent)

    # -- on paper -----------------------------------------------------------------------------------------------------
    def entries(self, layout: Layout, site: Site) -> int:
        return self.plan.rooms[site.layer]

    def kept_before(self, site: Site, step: Step, *, contextual: bool) -> int:
        return self.plan.retained[step.index][site.layer, contextual]

    # -- one generation -----------------------------------------------------------------------------------------------
    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        super().begin(layout, sites, memory)
        scales = len(layout.scales)
        sizes = torch.tensor(layout.scale_tokens)
        mass = torch.tensor(self.facts(layout)["mass"], dtype=torch.float64)
        self.factor = memory.zeros("factor", (layout.layers, layout.kv_heads, scales, scales), torch.float32)
        self.factor.copy_(mass / sizes)
        self.scale_of = memory.zeros("scale_of", (layout.visual,), torch.int64)
        self.scale_of.copy_(torch.arange(scales).repeat_interleave(sizes))

    def cut(self, site: Site, step: Step, *, contextual: bool) -> Cut:
        """Return the plan's budgets for each class, layer and scale; nothing is evicted after the last scale."""
        if step.last:
            return Cut(self.attention_budget, self.kept_before(site, step, contextual=contextual) + step.count)
        return Cut(self.attention_budget, self.plan.retained[step.index + 1][site.layer, contextual])

    def scores(self, site: Site, step: Step, part: Extent, q: Tensor) -> Tensor:
        """Return pooled mean attention of a few queries, or calibrated attention times the value's norm."""
        if self.is_contextual(site, part.first):
            attention = self.subset_attention(q, part.view(self.shown.k), step).mean(2)
            return F.max_pool1d(attention, self.pool, 1, self.pool // 2)
        factor = self.factor[site.layer, part.first : part.first + part.heads, step.index]
        scale = self.scale_of[part.view(self.shown.visual).long()]
        return factor.expand(len(scale), -1, -1).gather(2, scale) * part.view(self.shown.v).float().norm(dim=-1)


@cache
def _planned(classes: HeadClasses, calibration: str, tokens: tuple[int, ...], mean: int, exponent: float) -> RelianceBudgets:
    return RelianceBudgets(tokens, classes, _reliance(calibration, tokens), mean, exponent)


@cache
def _reliance(calibration: str, tokens: tuple[int, ...]) -> Any:
    return reliance_of(calibrations.named(HACKPlusPlus.name, calibration)[1]["mass"], tokens)


Group = tuple[int, bool]  # a layer, and whether its contextual heads are meant
Reliance = tuple[tuple[tuple[float, ...], ...], ...]


def reliance_of(mass: Sequence[Sequence[Sequence[Sequence[float]]]], tokens: Sequence[int]) -> Reliance:
    """Return γ by layer, head and scale: mean attention of later scales to a token before them, summed.

    ``mass[layer][head][query scale][source scale]``: mean share of attention; ``tokens`` of each scale.
    """
    before = [0, *accumulate(tokens)]
    later = range(1, len(tokens))
    return tuple(tuple(tuple(sum(sum(head[made][:made]) / before[made] for made in later if made > scale) for scale in range(len(tokens)))
                       for head in heads) for heads in mass)


@dataclass(frozen=True)
class RelianceBudgets:
    """Budgets in proportion to a class's mean reliance γ in a layer, to the power ``exponent``.

    They average at most ``mean`` entries over all heads, once more than that have been seen. ``tokens`` of each scale. No class gets more
    than its heads have; the rest is shared out in proportion. A head keeps at least one entry.
    """

    tokens: tuple[int, ...]
    classes: HeadClasses
    reliance: Reliance
    mean: int
    exponent: float

    @cached_property
    def groups(self) -> Mapping[Group, int]:
        """Number of heads of each class in each layer."""
        sizes = {(layer, few): sum(contextual is few for contextual in heads)
                 for layer, heads in enumerate(self.classes.contextual) for few in (False, True)}  # fmt: skip
        return {group: heads for group, heads in sizes.items() if heads}

    @cached_property
    def retained(self) -> list[Mapping[Group, int]]:
        """Entries that a head of each group has while a scale is generated, by scale."""
        by_scale: list[Mapping[Group, int]] = [dict.fromkeys(self.groups, 0)]
        for scale, earlier in enumerate(accumulate(self.tokens[:-1])):
            there = {group: n + self.tokens[scale] for group, n in by_scale[-1].items()}
            by_scale.append(self._shared(scale, there) if earlier > self.mean else there)
        return by_scale

    def _shared(self, scale: int, there: Mapping[Group, int]) -> Mapping[Group, int]:
        weights = {group: self._weight(group, scale) for group in self.groups}
        remaining, budgets, asking = self.mean * self.classes.pairs, dict[Group, int](), list(self.groups)
        while asking:
            total_weight = sum(self.groups[group] * weights[group] for group in asking)
            if total_weight == 0:  # nothing relies on any of them
                weights, total_weight = dict.fromkeys(asking, 1.0), sum(self.groups[group] for group in asking)
            shares = {group: remaining * weights[group] / total_weight for group in asking}
            sated = [group for group in asking if shares[group] >= there[group]]
            budgets |= {group: there[group] for group in sated} or {group: max(1, int(shares[group])) for group in asking}
            remaining -= sum(self.groups[group] * there[group] for group in sated)
            asking = [group for group in asking if group not in budgets]
        return budgets

    def _weight(self, group: Group, scale: int) -> float:
        layer, few = group
        heads = [self.reliance[layer][head][scale] for head, contextual in enumerate(self.classes.contextual[layer]) if contextual is few]
        return float(max(0.0, sum(heads) / len(heads)) ** self.exponent)

    def of_layer(self, budgets: Mapping[Group, int], layer: int) -> int:
        """Return the entries of all heads of a layer."""
        return sum(heads * budgets[group] for group, heads in self.groups.items() if group[0] == layer)

    @cached_property
    def rooms(self) -> list[int]:
        """Most entries of the heads of each layer together after any scale."""
        return [max(self.of_layer(budgets, layer) for budgets in self.retained) for layer in range(len(self.classes.contextual))]
