"""HeatKV: whole scales dropped head by head, by a static plan from measured attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

from torch import Tensor

from ..cache.layout import Layout, Site, Step
from ..cache.ragged import Kept, RaggedSlot, RaggedWorkspace
from ..contract.planning import largest
from ..core.errors import BadBudget, BadParameter
from .base import calibrations
from .base.head_aware import CalibratedHeads
from .registry import method

PUBLISHED = Fraction(1, 10)  # the default of the authors' code


@method("heatkv")
@dataclass
class HeatKV(CalibratedHeads):
    """Keeps all tokens of a scale in a head or none, by a static plan within ``limit`` entries.

    Cederlund et al., "HeatKV" (arXiv 2605.14877); the schedule follows the code arm-research/heatkv, commit 96dc288. For each scale except
    the first ``sink`` ones, heads are ranked by their later attention to it (S-CAS); the lowest lose it first. The plan
    follows from a calibration: ``infinity-2b`` and ``infinity-8b`` are the published orders, others come from ``cachemark calibrate``.
    ``early`` drops some tokens before the next scale, so that the limit holds between layers too.

    Differs from the code: a layer's buffer fits the most entries that its heads keep after any scale, since survivors are packed (theirs
    never move, so at 10 % it allocates 17.6 % of the full cache on Infinity-2B, ours 15.0 %); keys are in the model's dtype (theirs in
    fp32); S-CAS is the mean over the conditional rows of all samples, which equals theirs over prompts one by one.
    """

    title = "HeatKV"
    source = "HeatKV (arXiv 2605.14877), and its code, arm-research/heatkv at 96dc288"
    authors_code = "yes: arm-research/heatkv"
    sizes = ("limit",)
    parts = ("scas",)
    unstated = {
        "counts": "ours: a budget counts allocated bytes; theirs bounds live bytes, as `live` does",
        "calibration": "the ten prompts of the published orders are not stated; ours come from the tuning seeds",
    }

    sink: int = 3
    early: bool = True
    counts: str = "allocated"
    limit: int = 0

    # -- planning -----------------------------------------------------------------------------------------------------
    def tables(self, calibrated: Mapping[str, Any], layout: Layout) -> Mapping[str, tuple[int, ...]]:
        """Return the tables' shapes; the published files have orders alone."""
        if "orders" in calibrated:
            return {"orders": (len(layout.scales) - 1 - calibrated["first_source"], layout.layers * layout.kv_heads)}
        return super().tables(calibrated, layout)

    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        self.check_choice("counts", "allocated", "live")
        shape = self._shape(layout)
        most = int(budget * shape.pairs * layout.cacheable)
        if most < shape.least:
            raise BadBudget(f"heatkv: a budget of {float(budget):.3g} is below the sinks: every head keeps the "
                            f"{shape.before[self.sink]} of {layout.cacheable} tokens in the first {self.sink} scales.",
                            remedy=f"Use at least {shape.least / shape.pairs / layout.cacheable:.4f}, or a smaller sink.")
        if self.counts == "live":
            return {"limit": most}
        calibration = self._calibrated(layout)
        return {"limit": largest(shape.least, shape.pairs * layout.cacheable,
                                 lambda limit: sum(_planned(calibration, shape, limit, self.early).rooms) <= most)}

    def resolve(self, layout: Layout) -> None:
        self.check_choice("counts", "allocated", "live")
        shape = self._shape(layout)
        self.limit = self.limit or int(PUBLISHED * shape.pairs * layout.cacheable)
        if self.limit < shape.least:
            raise BadBudget(f"heatkv: limit = {self.limit} is below the sinks, {shape.least} entries in all layers and heads.",
                            remedy=f"Use {shape.least} or more, or a smaller sink.")
        self.plan = _planned(self._calibrated(layout), shape, self.limit, self.early)

    def _shape(self, layout: Layout) -> Shape:
        self.check_range("sink", 1 <= self.sink < len(layout.scales), f"Use 1 … {len(layout.scales) - 1} scales.")
        return Shape(layout.scale_tokens, layout.layers, layout.kv_heads, self.sink)

    def _calibrated(self, layout: Layout) -> str:
        """Return the digest of a calibration with orders for this sink."""
        calibrated = self.facts(layout)
        if calibrated.get("first_source", self.sink) != self.sink:
            model, first = calibrated["model"], calibrated["first_source"]
            raise BadParameter(f"heatkv: sink = {self.sink}; the orders of {model} start after {first} scales.",
                               remedy=f"Use sink = {first}, or measure the scores: cachemark calibrate heatkv MODEL.")
        return self.calibration

    # -- on paper -----------------------------------------------------------------------------------------------------
    def attended_by_heads(self, layout: Layout, site: Site, step: Step) -> int:
        return self.plan.live[step.index][site.layer] + layout.kv_heads * step.count

    def entries(self, layout: Layout, site: Site) -> int:
        return self.plan.rooms[site.layer]

    # -- one generation -----------------------------------------------------------------------------------------------
    def select(self, site: Site, step: Step, slot: RaggedSlot, workspace: RaggedWorkspace, q: Tensor) -> Sequence[Kept]:
        """Return the scales that the plan leaves each head for the next scale."""
        plan = self.plan
        now, then = plan.kept[step.index][site.layer], plan.kept[step.index + 1][site.layer]
        return [_places((*has, step.index), keeps, plan.shape.tokens) for has, keeps in zip(now, then, strict=True)]


def orders_of(calibrated: Mapping[str, Any], shape: Shape) -> Sequence[Sequence[int]]:
    """Return all pairs per source scale, lowest S-CAS first; ties by head, then layer."""
    if "orders" in calibrated:
        return list(calibrated["orders"])
    scores = calibrated["scas"]
    pairs = [(head, layer) for layer in range(shape.layers) for head in range(shape.heads)]
    return [[layer * shape.heads + head for head, layer in sorted(pairs, key=lambda pair: (scores[pair[1]][pair[0]][source], pair))]
            for source in shape.sources]


@cache
def _planned(calibration: str, shape: Shape, limit: int, early: bool) -> HeatPlan:
    orders = orders_of(calibrations.named(HeatKV.name, calibration)[1], shape)
    return HeatPlan.without(shape, removed(shape, orders, limit, early=early))


def _places(has: Sequence[int], keeps: Sequence[int], tokens: Sequence[int]) -> list[range]:
    """Return the positions of tokens of the scales ``keeps`` among tokens of ``has``, merged into ranges."""
    ranges: list[range] = []
    at = 0
    for source in has:
        stop = at + tokens[source]
        if source in keeps:
            start = ranges.pop().start if ranges and ranges[-1].stop == at else at
            ranges.append(range(start, stop))
        at = stop
    return ranges


Pair = int  # layer · heads + head
Gone = Mapping[int, frozenset[Pair]]  # by source scale


@dataclass(frozen=True)
class Shape:
    """Sizes of a plan: ``tokens`` per scale, ``layers``, K/V ``heads``, and ``sink`` scales that stay."""

    tokens: tuple[int, ...]
    layers: int
    heads: int
    sink: int

    @property
    def pairs(self) -> int:
        return self.layers * self.heads

    @property
    def before(self) -> list[int]:
        """Tokens before each scale."""
        return [0, *accumulate(self.tokens[:-1])]

    @property
    def sources(self) -> range:
        """Scales that may be dropped: neither a sink nor the last."""
        return range(self.sink, len(self.tokens) - 1)

    @property
    def least(self) -> int:
        """Entries of the sinks in all layers and heads."""
        return self.before[self.sink] * self.pairs


def removed(shape: Shape, orders: Sequence[Sequence[Pair]], entries: int, *, early: bool = True) -> list[Gone]:
    """Return, for every scale, the pairs without the tokens of each source scale.

    ``orders``: all pairs per source, lowest S-CAS first. ``entries``: most live entries in all layers and heads, at least the number of
    sinks. Follows arm-research/heatkv, commit 96dc288: as many pairs lose every source scale as the tokens before the next scale require;
    with ``early`` some lose it before the scale is generated, so that the limit holds between its layers too.
    """
    last = len(shape.tokens) - 1
    ranks = {source: list(orders[source - shape.sink]) for source in shape.sources}
    excess = [_lost(shape, scale, entries) for scale in range(last + 1)]
    goals = [{source: frozenset(ranks[source][: excess[scale + 1]]) for source in shape.sources if source <= scale}
             for scale in range(last)]
    gone: list[Gone] = [{}]
    for scale in range(1, last + 1):
        dropped = {source: set(pairs) for source, pairs in goals[scale - 1].items()}
        if early and scale < last:
            _remove_early(shape, scale, entries, ranks, goals[scale], dropped)
        gone.append({source: frozenset(pairs) for source, pairs in dropped.items()})
    return gone


def _lost(shape: Shape, scale: int, entries: int) -> int:
    """Return how many pairs lose each source scale before ``scale``.

    ⌈(all entries − the limit) / (entries of a pair without its sinks)⌉.
    """
    entries_before, over = shape.before[scale], shape.pairs * shape.before[scale] - entries
    if over <= 0:
        return 0
    return min(shape.pairs, -(-over // (entries_before - min(shape.before[shape.sink], entries_before))))


def _remove_early(
    shape: Shape, scale: int, entries: int, ranks: Mapping[int, list[Pair]], goal: Gone, gone: dict[int, set[Pair]],
) -> None:
    """Add to ``gone`` the pairs dropped before the scale, so that at most ``entries`` are live in it.

    They are among those that its goal drops: later layers first, then later source scales, then by rank.
    """
    later = sorted(((source, pair) for source, pairs in goal.items() if source < scale for pair in pairs - gone.get(source, set())),
                   key=lambda candidate: (-(candidate[1] // shape.heads), -candidate[0], ranks[candidate[0]].index(candidate[1])))
    live = shape.pairs * min(shape.before[shape.sink], shape.before[scale])
    live += sum(shape.tokens[source] * (shape.pairs - len(gone.get(source, ()))) for source in shape.sources if source < scale)
    taken = set[tuple[int, Pair]]()
    for layer in range(shape.layers):
        own = range(layer * shape.heads, (layer + 1) * shape.heads)
        if scale >= shape.sink:
            live += shape.tokens[scale] * sum(pair not in goal[scale] for pair in own)
        for source, pair in ((s, p) for s, pairs in goal.items() if s < scale for p in pairs.intersection(own) - gone.get(s, set())):
            if (source, pair) not in taken:
                live -= shape.tokens[source]
        beyond = (pair for pair in later if pair[1] // shape.heads > layer and pair not in taken)
        while live > entries and (source_pair := next(beyond, None)):
            taken.add(source_pair)
            live -= shape.tokens[source_pair[0]]
    for source, pair in taken:
        gone.setdefault(source, set()).add(pair)


@dataclass(frozen=True)
class HeatPlan:
    """Earlier scales that every head has while each scale is generated: ``kept[scale][layer][head]``."""

    shape: Shape
    kept: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]

    @classmethod
    def without(cls, shape: Shape, gone: Sequence[Gone]) -> HeatPlan:
        """Return the plan after these pairs have lost these scales."""
        layers, heads = range(shape.layers), range(shape.heads)
        return cls(shape, tuple(tuple(tuple(
            tuple(source for source in range(scale) if layer * shape.heads + head not in dropped.get(source, ())) for head in heads)
            for layer in layers) for scale, dropped in enumerate(gone)))

    @cached_property
    def live(self) -> list[list[int]]:
        """Entries of all heads of a layer while a scale is generated, by scale and layer."""
        tokens = self.shape.tokens
        return [[sum(tokens[source] for head in heads for source in head) for heads in layers] for layers in self.kept]

    @cached_property
    def rooms(self) -> list[int]:
        """Most entries of each layer after any scale."""
        return [max(entries) for entries in zip(*self.live, strict=True)]
