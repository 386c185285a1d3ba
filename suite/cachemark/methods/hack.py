"""HACK: contextual heads with a small cache, structural heads with a large one, and one choice for attention and cache alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache.attention import fold
from ..cache.layout import Layout, Site, Step
from ..cache.ragged import Kept, RaggedStage
from ..contract.paper_costs import MethodOverhead
from ..contract.per_head import PerHead
from ..core import calibrations, registry
from ..core.errors import BadBudget, BadKnob
from .base.calibrated import Calibrated
from .scale_heads.attention_profile import AttentionProfile
from .scale_heads.head_classes import HeadClasses

FIRST = 2  # scales whose tokens a structural head always keeps
PUBLISHED = Fraction(3, 10)  # of all tokens: the paper's 70 %


@registry.methods.add("hack")
@dataclass
class HACK(Calibrated, PerHead):
    """Before a scale is attended to, every head that has more entries than its budget, the scale's own among them, is cut to it: what is
    dropped is neither seen now nor kept. *Contextual* heads, whose weights vary least from query to query, have a small budget and keep
    what some queries attend to most; *structural* heads have a large one and keep the first two scales and the newest besides.

    Qin et al., "Head-Aware KV Cache Compression for Efficient Visual Autoregressive Modeling" (AAAI 2026, arXiv 2504.09261). ``mean`` is
    the entries of a head on average; the paper's ratio is 1 − ``mean`` / all tokens, those of the last scale included, which nobody reads
    again: its 70 % is 49 % of the full cache on Infinity at 1024 pixels.

    Differs from the paper, whose code was not to be had: what is dropped in the last scale is not merged into what stays, since the
    variant of the merging is not stated; heads stand where they are, neighbours of one class side by side.
    """

    name = "hack"
    source = "HACK (arXiv 2504.09261), of which no code was found; read from its abstract and from summaries"
    sizes = ("mean",)
    unstated = {
        "contextual": "ours: the share of contextual heads is not stated for any model",
        "contrast": "ours: how much smaller the budget of contextual heads is, is not stated",
        "calibration": "ours: which samples, and whether unconditional rows count; here ten tuning seeds, conditional rows alone",
        "queries": "32 as stated; that they lie in the middles of equal parts of the scale is ours",
    }

    contextual: float = 0.5
    contrast: float = 0.5
    queries: int = 32
    mean: int = 0

    # -- what a plan asks ---------------------------------------------------------------------------------------------
    @classmethod
    def profiler(cls) -> AttentionProfile:
        return AttentionProfile("variance")

    def tables(self, facts: Mapping[str, Any], layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"variance": (layout.layers, layout.kv_heads)}

    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        self._check_knobs(layout)
        classes = self._classes(layout)
        most = budget * classes.pairs * layout.cacheable
        fitting = [mean for mean in range(1, layout.visual + 1) if self._allocated(classes, layout, mean) <= most]
        if not fitting or self._budgets(classes, layout, fitting[-1])[1] < _sink(layout):
            raise BadBudget(f"hack: a budget of {float(budget):.3g} leaves structural heads less than the {_sink(layout)} of the "
                            f"sinks, the first {FIRST} scales.", remedy="Give a larger share.")
        return {"mean": fitting[-1]}

    def own_budget(self, layout: Layout) -> Fraction:
        """The share of the full cache that is allocated: at this mean, or at the paper's 70 %."""
        self.resolve(layout)
        return Fraction(self._allocated(self.classes, layout, self.mean), layout.cacheable * self.classes.pairs)

    def resolve(self, layout: Layout) -> None:
        self._check_knobs(layout)
        self.mean = self.mean or int(PUBLISHED * layout.visual)
        self.classes = self._classes(layout)
        self.small, self.large = self._budgets(self.classes, layout, self.mean)
        if self.large < _sink(layout) or not self.small:
            raise BadBudget(f"hack: mean = {self.mean} leaves structural heads {self.large} entries, less than the {_sink(layout)} of the "
                            f"sinks, the first {FIRST} scales.", remedy="Give a larger mean.")

    def _check_knobs(self, layout: Layout) -> None:
        for knob, value in (("contextual", self.contextual), ("contrast", self.contrast)):
            if not 0 < value < 1:
                raise BadKnob(f"hack: {knob} = {value} is no share.", remedy="Give a number between 0 and 1.")
        if self.queries < 1:
            raise BadKnob(f"hack: queries = {self.queries} asks nobody.", remedy="Give 1 or more.")
        if not 0 <= self.mean <= layout.visual:
            raise BadKnob(f"hack: mean = {self.mean} of {layout.visual} tokens.", remedy=f"Give 1 … {layout.visual}.")

    def _classes(self, layout: Layout) -> HeadClasses:
        self.facts(layout)
        return _classes(self.calibration, self.contextual)

    def _budgets(self, classes: HeadClasses, layout: Layout, mean: int) -> tuple[int, int]:
        return classes.budgets(mean, Fraction(str(self.contrast)), layout.visual)

    def _allocated(self, classes: HeadClasses, layout: Layout, mean: int) -> int:
        small, large = (min(budget, layout.cacheable) for budget in self._budgets(classes, layout, mean))
        return classes.few * small + (classes.pairs - classes.few) * large

    def _of(self, layer: int) -> list[int]:
        """The budgets of a layer's heads."""
        return [self.small if few else self.large for few in self.classes.contextual[layer]]

    # -- on paper -----------------------------------------------------------------------------------------------------
    def entries(self, layout: Layout, site: Site) -> int:
        return sum(min(budget, layout.cacheable) for budget in self._of(site.layer))

    def attended(self, layout: Layout, site: Site, step: Step) -> int:
        """The mean over the heads, rounded up."""
        return -(-self.attended_by_heads(layout, site, step) // layout.kv_heads)

    def attended_by_heads(self, layout: Layout, site: Site, step: Step) -> int:
        return sum(min(budget, step.first + step.count) for budget in self._of(site.layer))

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Every key of a head that is cut, read and scored, and what stays of it moved."""
        cut = [(min(budget, step.first) + step.count, budget) for budget in self._of(site.layer) if step.first + step.count > budget]
        scored, group = sum(total for total, _ in cut), layout.heads // layout.kv_heads
        return MethodOverhead(min(self.queries, step.count) * group * layout.head_dim * scored,
                              layout.head_dim * (scored + 4 * sum(budget for _, budget in cut)))

    # -- one generation -----------------------------------------------------------------------------------------------
    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Choose, attend to the choice alone, and keep it."""
        slot, stage = self.ragged[site], self.shown
        stage.put(slot, step.first, k, v)
        queries = fold(q, k.size(1))
        outs: dict[int, Tensor] = {}
        kept: dict[int, Kept] = {}
        for heads, keys, values in self._alike(site, stage):
            asked = queries[:, heads[0] : heads[-1] + 1]
            if keys.size(2) > (budget := self._of(site.layer)[heads[0]]):
                few = asked.unflatten(2, (-1, step.count)).index_select(3, self._asked(step.count, q.device)).flatten(2, 3)
                chosen = self.chosen(few, keys, budget, step, contextual=self.classes.contextual[site.layer][heads[0]])
                wide = chosen[..., None].expand(-1, -1, -1, k.size(-1))
                keys, values = keys.gather(2, wide), values.gather(2, wide)
                kept |= zip(heads, chosen.unbind(1), strict=True)
            else:
                everything = [range(keys.size(2))]
                kept |= dict.fromkeys(heads, everything)
            outs |= zip(heads, F.scaled_dot_product_attention(asked, keys, values).unbind(1), strict=True)
        if not step.last:
            slot.absorb(stage, [kept[head] for head in sorted(kept)])
        return torch.stack([outs[head] for head in sorted(outs)], 1).reshape(q.shape)

    def _alike(self, site: Site, stage: RaggedStage) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Neighbouring heads of one length that are cut alike, with their keys and values (rows, heads, length, head_dim): all that are not
        cut, and those of one class."""
        contextual, budgets = self.classes.contextual[site.layer], self._of(site.layer)
        for extent in stage.extents:
            heads = range(extent.first, extent.first + extent.heads)
            kinds = {head: extent.length > budgets[head] and (budgets[head], contextual[head]) for head in heads}
            for _, group in groupby(heads, key=kinds.__getitem__):
                alike = list(group)
                part = slice(alike[0] - extent.first, alike[-1] + 1 - extent.first)
                yield alike, extent.of(stage.k)[:, part], extent.of(stage.v)[:, part]

    def _asked(self, count: int, device: torch.device) -> Tensor:
        """Places of the queries that score, evenly spread over a scale."""
        asked = min(self.queries, count)
        return (torch.arange(asked, device=device) * 2 + 1) * count // (2 * asked)

    def chosen(self, q: Tensor, k: Tensor, budget: int, step: Step, *, contextual: bool) -> Tensor:
        """Places of [live | own] that heads of one class keep, (rows, heads, budget) ascending, by some queries (rows, heads, n, head_dim)
        and all keys (rows, heads, keys, head_dim): of equal scores those that came first."""
        scores = (q.float() @ k.float().mT * q.size(-1) ** -0.5).softmax(-1).sum(2)
        if not contextual:
            sink, own = _sink(self.layout), k.size(2) - step.count
            scores[..., :sink] = torch.inf
            if sink + step.count <= budget:
                scores[..., own:] = torch.inf
        return scores.sort(dim=-1, descending=True, stable=True).indices[..., :budget].sort(-1).values


@cache
def _classes(calibration: str, share: float) -> HeadClasses:
    return HeadClasses.of(calibrations.named(HACK.name, calibration)[1]["variance"], share)


def _sink(layout: Layout) -> int:
    """Tokens of the first scales, which a structural head keeps."""
    return sum(side**2 for side in layout.scales[:FIRST])
