"""The static plan of HeatKV: which tokens of earlier scales each head still has while a scale is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

Pair = int  # layer · heads + head
Gone = Mapping[int, frozenset[Pair]]  # by source scale


@dataclass(frozen=True)
class Shape:
    """The sizes that a plan is made for: ``tokens`` of each scale, ``layers``, K/V ``heads``, and the first ``sink`` scales that stay."""

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
        """The scales that may be dropped: neither a sink nor the last one."""
        return range(self.sink, len(self.tokens) - 1)

    @property
    def least(self) -> int:
        """Entries of the sinks, all layers and heads together."""
        return self.before[self.sink] * self.pairs


def removed(shape: Shape, orders: Sequence[Sequence[Pair]], entries: int, *, early: bool = True) -> list[Gone]:
    """Heads without the tokens of a source scale while scale t is made, for every t. ``orders``: for each source all pairs, lowest S-CAS
    first. ``entries``: how many may live at once, all layers and heads together; at least those of the sinks.

    HeatKV's code, arm-research/heatkv, commit 96dc288. As many pairs lose every source scale as the tokens before the next scale ask for;
    with ``early`` some lose theirs already before the scale is made, so that the limit holds between its layers too.
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
    """Pairs that lose each source scale before ``scale``: ⌈(all entries − the limit) / (entries of a pair but for its sinks)⌉."""
    entries_before, over = shape.before[scale], shape.pairs * shape.before[scale] - entries
    if over <= 0:
        return 0
    return min(shape.pairs, -(-over // (entries_before - min(shape.before[shape.sink], entries_before))))


def _remove_early(
    shape: Shape, scale: int, entries: int, ranks: Mapping[int, list[Pair]], goal: Gone, gone: dict[int, set[Pair]],
) -> None:
    """Add to ``gone`` what has to go before the scale is made, so that no more than ``entries`` live while it runs through the layers: what
    its goal removes anyway, of later layers first, then of later source scales, then by rank."""
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
        while live > entries and (source_pair := next(_beyond(later, layer, shape.heads, taken), None)):
            taken.add(source_pair)
            live -= shape.tokens[source_pair[0]]
    for source, pair in taken:
        gone.setdefault(source, set()).add(pair)


def _beyond(later: Sequence[tuple[int, Pair]], layer: int, heads: int, taken: set[tuple[int, Pair]]) -> Iterator[tuple[int, Pair]]:
    """Scales of pairs in layers behind ``layer`` that may still go early, in order."""
    return ((source, pair) for source, pair in later if pair // heads > layer and (source, pair) not in taken)


@dataclass(frozen=True)
class HeatPlan:
    """The earlier scales that every head has while each scale is made: ``kept[scale][layer][head]``."""

    shape: Shape
    kept: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]

    @classmethod
    def without(cls, shape: Shape, gone: Sequence[Gone]) -> HeatPlan:
        """The plan under which these pairs have lost these scales."""
        layers, heads = range(shape.layers), range(shape.heads)
        return cls(shape, tuple(tuple(tuple(
            tuple(source for source in range(scale) if layer * shape.heads + head not in dropped.get(source, ())) for head in heads)
            for layer in layers) for scale, dropped in enumerate(gone)))

    @cached_property
    def live(self) -> list[list[int]]:
        """Entries that the heads of a layer hold together while a scale is made: by scale and layer."""
        tokens = self.shape.tokens
        return [[sum(tokens[source] for head in heads for source in head) for heads in layers] for layers in self.kept]

    @cached_property
    def rooms(self) -> list[int]:
        """The most that each layer ever holds behind a scale."""
        return [max(entries) for entries in zip(*self.live, strict=True)]
