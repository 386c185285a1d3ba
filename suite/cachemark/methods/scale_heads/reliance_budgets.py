"""The cache budgets of HACK++: what either class of heads keeps in each layer behind each scale, by how much later scales rely on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from .head_classes import HeadClasses

Group = tuple[int, bool]  # a layer, and whether its contextual heads are meant
Reliance = tuple[tuple[tuple[float, ...], ...], ...]


def reliance_of(mass: Sequence[Sequence[Sequence[Sequence[float]]]], tokens: Sequence[int]) -> Reliance:
    """γ by layer, head and scale: of every later scale the mean attention that a token before it receives, summed.
    ``mass[layer][head][scale that is made][source]``: mean share of a query's attention; ``tokens`` of each scale."""
    before = [0, *accumulate(tokens)]
    later = range(1, len(tokens))
    return tuple(tuple(tuple(sum(sum(head[made][:made]) / before[made] for made in later if made > scale) for scale in range(len(tokens)))
                       for head in heads) for heads in mass)


@dataclass(frozen=True)
class RelianceBudgets:
    """Budgets in proportion to the mean reliance γ of a class's heads in a layer, to the power ``exponent``: over all layers and heads they
    are ``mean`` entries on average, or just below, as long as more than that have been seen. ``tokens`` of each scale.

    No class is given more than its heads have; what is left over goes to the others in proportion. A head keeps at least one entry.
    """

    tokens: tuple[int, ...]
    classes: HeadClasses
    reliance: Reliance
    mean: int
    exponent: float

    @cached_property
    def groups(self) -> Mapping[Group, int]:
        """Heads of each class in each layer, where there are any."""
        sizes = {(layer, few): sum(contextual is few for contextual in heads)
                 for layer, heads in enumerate(self.classes.contextual) for few in (False, True)}  # fmt: skip
        return {group: heads for group, heads in sizes.items() if heads}

    @cached_property
    def kept(self) -> list[Mapping[Group, int]]:
        """Entries that a head of each group has while a scale is made, by scale."""
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
        """Entries of all heads of a layer."""
        return sum(heads * budgets[group] for group, heads in self.groups.items() if group[0] == layer)

    @cached_property
    def rooms(self) -> list[int]:
        """The most that the heads of each layer ever hold together behind a scale."""
        return [max(self.of_layer(budgets, layer) for budgets in self.kept) for layer in range(len(self.classes.contextual))]
