"""ScaleKV: large budgets for drafter layers, small ones for refiners; a few queries select entries."""

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
from ..cache.attention import fold
from ..cache.layout import Grid, Layout, Site, Step
from ..cache.slot import Slot
from ..contract.method import Method
from ..contract.planning import MethodOverhead
from ..core.errors import BadBudget
from .base import calibrations
from .base.calibrations import Calibrated
from .registry import method

GRID, WINDOW, POOL_WIDTH = 4, 16, 5  # the window of queries is a grid over the map; scores are pooled over neighbours in the cache
PUBLISHED = Fraction(650, 6425)  # the authors' 10 %


@method("scalekv")
@dataclass
class ScaleKV(Calibrated, Method):
    """Keeps a budget per layer after every scale: large in *drafter* layers, small in the others.

    Li et al., "Memory-Efficient Visual Autoregressive Modeling with Scale-Aware KV Cache Compression" (NeurIPS 2025, arXiv 2505.19602) and
    the code StargazerX0/ScaleKV, commit eb0615a. Budgets hold from the first scale that makes the cache longer than ``mean`` entries. 16
    evenly spaced queries score all entries; their own 16 stay, and those with the highest scores, pooled over neighbors. ``score =
    "code"``: queries before bias, norm, scale and rotation, products summed without a softmax, maximum of five neighbors. ``softmax``, as
    in the paper: attention weights and the mean of five.

    Differs from the code: budgets other than the published ones follow from a rule that reproduces those; ties keep the older entry (theirs
    depends on the device); nothing is projected twice; keys are in the model's dtype (theirs in fp32). A map narrower than 4
    is scored by its last 16 queries. 16 spaced queries also score a map that is not square (theirs keeps the last 16 entries instead).
    """

    title = "ScaleKV"
    paradigms = ("next-scale",)
    evicts = True
    source = "ScaleKV (arXiv 2505.19602), Sec. 3, and its code, StargazerX0/ScaleKV at eb0615a"
    authors_code = "yes: StargazerX0/ScaleKV"
    sizes = ("mean",)
    parts = ("asi",)
    unstated = {
        "score": "the published code; the paper's formula is `softmax`, and keeps half of other entries",
        "drafters": "ours: the number of drafters is not stated; published are 2 of 32 and 3 of 40",
        "counts": "ours: a budget counts allocated bytes; theirs counts live bytes between two scales, as `live` does",
        "calibration": "ours: the paper does not state the prompts, how attention is averaged, or how the strongest weights are counted",
    }

    score: str = "code"
    drafters: int = 0
    counts: str = "allocated"
    mean: int = 0

    # -- planning -----------------------------------------------------------------------------------------------------
    def tables(self, calibrated: Mapping[str, Any], layout: Layout) -> Mapping[str, tuple[int, ...]]:
        """Return the table's shape; the published files have budgets alone, which imply the drafters."""
        return {} if "drafters" in calibrated else super().tables(calibrated, layout)

    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        self._check_parameters(layout)
        most = int(budget * layout.layers * layout.cacheable)
        if most < WINDOW * layout.layers:
            raise BadBudget(f"scalekv: a budget of {float(budget):.3g} is {most // layout.layers} entries per layer; {WINDOW} always stay.",
                            remedy=f"Use at least {WINDOW / layout.cacheable:.4f}.")
        if self.counts == "live":
            return {"mean": most // layout.layers}
        above = min(most // layout.layers + 1, layout.cacheable)  # the layers' sizes add up to at least the means, except for rounding
        return {"mean": next((mean for mean in range(above, WINDOW, -1) if sum(self._budgets(layout, mean).rooms) <= most), WINDOW)}

    def own_budget(self, layout: Layout) -> Fraction:
        """Return the allocated fraction of the full cache, at this mean or the authors' 10 %."""
        self.resolve(layout)
        return Fraction(sum(self.plan.rooms), layout.layers * layout.cacheable)

    def resolve(self, layout: Layout) -> None:
        self._check_parameters(layout)
        self.mean = self.mean or max(WINDOW, int(PUBLISHED * layout.cacheable))
        if self.mean < WINDOW:
            raise BadBudget(f"scalekv: mean = {self.mean} is less than its window.", remedy=f"Use {WINDOW} or more.")
        self.plan = self._budgets(layout, self.mean)

    def _check_parameters(self, layout: Layout) -> None:
        self.check_choice("score", "code", "softmax")
        self.check_choice("counts", "allocated", "live")
        self.drafters = self.drafters or max(1, round(layout.layers / 16))
        self.check_range("drafters", 0 < self.drafters < layout.layers, f"Use 1 … {layout.layers - 1} layers.")

    def _budgets(self, layout: Layout, mean: int) -> LayerBudgets:
        self.facts(layout)
        return _budgets(self.calibration, layout.scale_tokens, layout.layers, mean, self.drafters)

    # -- on paper -----------------------------------------------------------------------------------------------------
    def capacity(self, layout: Layout, site: Site) -> int:
        return self.plan.rooms[site.layer]

    def attended(self, layout: Layout, site: Site, step: Step) -> int:
        return self.plan.retained[step.index][site.layer] + step.count

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Count scoring of every key and moving of survivors, after scales that evict."""
        if not self._cuts(site, step):
            return MethodOverhead()
        attended, stays = self.attended(layout, site, step), self.plan.retained[step.index + 1][site.layer]
        width = layout.kv_heads * layout.head_dim
        return MethodOverhead(min(WINDOW, step.count) * layout.heads * layout.head_dim * attended, width * attended + 4 * width * stays)

    # -- one generation -----------------------------------------------------------------------------------------------
    @property
    def needs_raw_queries(self) -> bool:
        return self.score == "code"

    def _cuts(self, site: Site, step: Step) -> bool:
        budgets = self.plan.retained
        return not step.last and budgets[step.index][site.layer] + step.count > budgets[step.index + 1][site.layer]

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        self.scale, self._fullest = 0, 0
        super().begin(layout, sites, memory)
        self.asked = memory.zeros("asked", (layout.rows, layout.heads, WINDOW, layout.head_dim), layout.dtype)

    def end_step(self, step: Step) -> None:
        super().end_step(step)
        self.scale, self._fullest = step.index + 1, max(self._fullest, self.live_bytes or 0)

    @property
    def logical_bytes(self) -> int:
        """Live bytes at the fullest pass: drafters still grow while other layers shrink."""
        return self._fullest

    def room(self, site: Site) -> int:
        """Return the budget after the current scale; the last scale is not stored."""
        behind = min(self.scale, len(self.layout.scales) - 2)
        return min(self.plan.behind(site.layer, behind), self.plan.rooms[site.layer])

    def observe_raw(self, site: Site, step: Step, q: Tensor) -> None:
        """Store the queries of the window, if entries will be evicted."""
        if self._cuts(site, step):
            chosen = _asked(q, self.layout.scales[step.index])
            self.asked[:, :, : chosen.size(2)] = chosen

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.needs_raw_queries:
            self.observe_raw(site, step, q)
        return super().attend(site, step, q, k, v)

    def survivors(self, site: Site, step: Step, slot: Slot, total: int) -> Tensor:
        """Return the window and the entries with the highest pooled scores, ascending; ties by age."""
        assert self.workspace is not None
        window = _window(self.layout.scales[step.index], total, self.asked.device)
        scores = self.pooled(self.asked[:, :, : min(WINDOW, step.count)], self.workspace.k[:, :, :total], window)
        count = self.plan.retained[step.index + 1][site.layer] - len(window)
        best = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
        return torch.cat((window.expand(*best.shape[:2], -1), best), -1).sort(-1).values

    def pooled(self, q: Tensor, k: Tensor, window: Tensor) -> Tensor:
        """Return scores (rows, kv_heads, n) fp32 of keys, pooled over neighbors; −∞ in the window.

        ``k`` (rows, kv_heads, n, head_dim), ``q`` (rows, heads, tokens, head_dim); scores are summed over queries.
        """
        scores = fold(q, k.size(1)).float() @ k.float().mT * q.size(-1) ** -0.5
        if self.score == "softmax":
            return F.avg_pool1d(scores.softmax(-1).sum(2), POOL_WIDTH, 1, POOL_WIDTH // 2).index_fill(-1, window, -torch.inf)
        summed = scores.sum(2).index_fill(-1, window, -torch.inf)
        return F.max_pool1d(summed, POOL_WIDTH, 1, POOL_WIDTH // 2).index_fill(-1, window, -torch.inf)


@cache
def _budgets(calibration: str, tokens: tuple[int, ...], layers: int, mean: int, drafters: int) -> LayerBudgets:
    calibrated = calibrations.named(ScaleKV.name, calibration)[1]
    return LayerBudgets(tokens, layers, mean, drafters_of(calibrated, drafters), WINDOW)


def spread(grid: Grid, device: torch.device | str = "cpu") -> Tensor:
    """Return 16 positions in a map of at least 4×4 tokens: the centers of equal rectangles."""
    rows, columns = (torch.arange(GRID, device=device) * (side // GRID) + (side // GRID - 1) // 2 for side in grid)
    return (rows[:, None] * grid[1] + columns).flatten()


def _asked(q: Tensor, grid: Grid) -> Tensor:
    """Return the queries of the window, (rows, heads, at most 16, head_dim)."""
    return q.index_select(2, spread(grid, q.device)) if min(grid) >= GRID else q[:, :, -WINDOW:]


def _window(grid: Grid, total: int, device: torch.device) -> Tensor:
    """Return the positions of entries that always stay: the queries' own, or the last 16 of the cache."""
    if min(grid) < GRID:
        return torch.arange(total - WINDOW, total, device=device)
    return spread(grid, device) + total - grid[0] * grid[1]


LEAST = 200 / 650  # of the mean, that a refiner keeps at least: so in the published budgets


@dataclass(frozen=True)
class LayerBudgets:
    """Entries that each layer may keep after each scale but the last.

    ``tokens`` of each scale; ``mean`` entries per layer; ``drafters``: layers with the larger budget, by scale; ``window``: entries that
    always stay. The authors publish numbers for 10 % alone. This rule, which reproduces all ten rows of them, is inferred: the layers'
    budgets sum to the mean times their number, and a drafter keeps as many entries as leave the others a whole number, at least ``LEAST``.
    """

    tokens: tuple[int, ...]
    layers: int
    mean: int
    drafters: tuple[tuple[int, ...], ...]
    window: int

    @cached_property
    def first(self) -> int:
        """The first scale that is followed by an eviction, else the last scale."""
        cumulative = list(accumulate(self.tokens))
        return next((scale for scale, n in enumerate(cumulative[:-1]) if n > self.mean), len(self.tokens) - 1)

    @cached_property
    def budgets(self) -> list[list[int]]:
        """Budgets by scale, from the first that evicts, and layer."""
        live = [sum(self.tokens[: self.first])] * self.layers
        by_scale = []
        for scale in range(self.first, len(self.tokens) - 1):
            there = [n + self.tokens[scale] for n in live]
            larger = self.drafters[scale]
            drafter, refiner = self._split(min((there[layer] for layer in larger), default=0), len(larger))
            by_scale.append([drafter if layer in larger else refiner for layer in range(self.layers)])
            live = [min(*pair) for pair in zip(there, by_scale[-1], strict=True)]
        return by_scale

    def _split(self, available: int, larger: int) -> tuple[int, int]:
        """Return the budgets of ``larger`` drafters with ``available`` entries and of the other layers."""
        refiners, total = self.layers - larger, self.mean * self.layers
        least = max(self.window, round(LEAST * self.mean))
        sizes = range(min(available, (total - refiners * least) // max(larger, 1)), self.mean - 1, -1)
        if not sizes:
            return self.mean, self.mean
        size = next((size for size in sizes[:refiners] if (total - larger * size) % refiners == 0), sizes[0])  # an exact share, if any
        return size, (total - larger * size) // refiners

    def behind(self, layer: int, scale: int) -> int:
        """Return the most entries that a layer may keep after a scale."""
        return self.budgets[scale - self.first][layer] if scale >= self.first else sum(self.tokens[: scale + 1])

    @cached_property
    def retained(self) -> list[list[int]]:
        """Entries that each layer has while a scale is generated, by scale."""
        by_scale = [[0] * self.layers]
        for scale, own in enumerate(self.tokens[:-1]):
            by_scale.append([min(n + own, self.behind(layer, scale)) for layer, n in enumerate(by_scale[-1])])
        return by_scale

    @cached_property
    def rooms(self) -> list[int]:
        """Most entries that each layer has after any scale."""
        return [max(entries) for entries in zip(*self.retained, strict=True)]


def drafters_of(calibrated: Mapping[str, object], count: int) -> tuple[tuple[int, ...], ...]:
    """Return the drafters after each scale: published ones, or the ``count`` layers of lowest mean ASI.

    The first and last published rows also serve earlier and later scales. ASI is compared by its mean z-score over all scales.
    """
    scales = len(calibrated["scales"])  # type: ignore[arg-type]
    if "drafters" in calibrated:
        published: Mapping[int, Sequence[int]] = {int(scale): layers for scale, layers in calibrated["drafters"].items()}  # type: ignore[attr-defined]
        return tuple(tuple(published[min(max(scale, min(published)), max(published))]) for scale in range(scales))
    ranked = sorted(range(len(mean := mean_scores(calibrated["asi"]))), key=lambda layer: (mean[layer], layer))  # type: ignore[arg-type]
    return (tuple(sorted(ranked[:count])),) * scales


def mean_scores(asi: Sequence[Sequence[float]]) -> list[float]:
    """Return each layer's mean z-score over the scales (population deviation, eps 1e-6)."""
    scores = [[0.0] * len(asi[0]) for _ in asi]
    for scale in range(len(asi[0])):
        values = [layer[scale] for layer in asi]
        middle = sum(values) / len(values)
        spread = (sum((value - middle) ** 2 for value in values) / len(values)) ** 0.5 + 1e-6
        for layer, value in enumerate(values):
            scores[layer][scale] = (value - middle) / spread
    return [sum(row) / len(row) for row in scores]
