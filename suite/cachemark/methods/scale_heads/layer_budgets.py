"""The budgets of ScaleKV: what drafter and refiner layers keep behind each scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

LEAST = 200 / 650  # of the mean, that a refiner keeps at least: so in the published budgets


@dataclass(frozen=True)
class LayerBudgets:
    """The entries that each layer may keep behind each scale but the last. ``tokens`` of each scale; ``mean`` entries a layer;
    ``drafters``: by the scale behind which something goes, the layers with the larger budget, which hold from there on; ``window``:
    entries that always stay.

    The authors publish numbers for 10 % alone. The rule that gives all ten rows of them is inferred: the layers' budgets sum to
    the mean times their number, and a drafter keeps as much of what there is as leaves the others a whole number, at least ``LEAST``.
    """

    tokens: tuple[int, ...]
    layers: int
    mean: int
    drafters: tuple[tuple[int, ...], ...]
    window: int

    @cached_property
    def first(self) -> int:
        """The first scale behind which something goes; the last one where nothing ever does."""
        cumulative = list(accumulate(self.tokens))
        return next((scale for scale, n in enumerate(cumulative[:-1]) if n > self.mean), len(self.tokens) - 1)

    @cached_property
    def budgets(self) -> list[list[int]]:
        """By scale, from the first that cuts, and layer."""
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
        """The budget of ``larger`` drafters, of what they have, and that of the other layers."""
        refiners, total = self.layers - larger, self.mean * self.layers
        least = max(self.window, round(LEAST * self.mean))
        shares = [(size, (total - larger * size) // refiners) for size in range(available, self.mean - 1, -1)
                  if (total - larger * size) // refiners >= least]
        exact = [share for share in shares if larger * share[0] + refiners * share[1] == total]
        return (exact or shares or [(self.mean, self.mean)])[0]

    def behind(self, layer: int, scale: int) -> int:
        """The most that a layer may keep behind a scale; everything before the first cut."""
        return self.budgets[scale - self.first][layer] if scale >= self.first else sum(self.tokens[: scale + 1])

    @cached_property
    def kept(self) -> list[list[int]]:
        """Entries that each layer has while a scale is made, by scale."""
        by_scale = [[0] * self.layers]
        for scale, own in enumerate(self.tokens[:-1]):
            by_scale.append([min(n + own, self.behind(layer, scale)) for layer, n in enumerate(by_scale[-1])])
        return by_scale

    @cached_property
    def rooms(self) -> list[int]:
        """The most that each layer ever holds behind a scale."""
        return [max(entries) for entries in zip(*self.kept, strict=True)]


def drafters_of(facts: Mapping[str, object], count: int) -> tuple[tuple[int, ...], ...]:
    """The drafters behind each scale: those that are published, of which the first and last also stand for earlier and later scales,
    else the ``count`` layers with the lowest mean z-score of ASI over all scales."""
    scales = len(facts["scales"])  # type: ignore[arg-type]
    if "drafters" in facts:
        published: Mapping[int, Sequence[int]] = {int(scale): layers for scale, layers in facts["drafters"].items()}  # type: ignore[attr-defined]
        return tuple(tuple(published[min(max(scale, min(published)), max(published))]) for scale in range(scales))
    ranked = sorted(range(len(mean := mean_scores(facts["asi"]))), key=lambda layer: (mean[layer], layer))  # type: ignore[arg-type]
    return (tuple(sorted(ranked[:count])),) * scales


def mean_scores(asi: Sequence[Sequence[float]]) -> list[float]:
    """Of every layer the mean over the scales of its z-score among the layers (population deviation, eps 1e-6)."""
    scores = [[0.0] * len(asi[0]) for _ in asi]
    for scale in range(len(asi[0])):
        values = [layer[scale] for layer in asi]
        middle = sum(values) / len(values)
        spread = (sum((value - middle) ** 2 for value in values) / len(values)) ** 0.5 + 1e-6
        for layer, value in enumerate(values):
            scores[layer][scale] = (value - middle) / spread
    return [sum(row) / len(row) for row in scores]
