"""Methods whose heads keep different numbers of entries, driven by random queries, keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codec import CODECS
from cachemark.cache.layout import Layout, Site, Step, scale_steps
from cachemark.cache.ragged import Kept, RaggedSlot, RaggedStage
from cachemark.contract.heads import PerHead
from cachemark.kit import per_head
from cachemark.kit.common import calibration
from cachemark.kit.driver import Onlooker as Watch
from cachemark.kit.per_head import HeadRun as Ran
from cachemark.methods.registry import METHODS

from .scales import Feed, layout_of

PER_VECTOR = [name for name, codec in CODECS.items() if not codec.grouped]
KV_HEADS = (4, 2)


@dataclass
class Staggered(PerHead):
    """Each head keeps the first two scales, and of the rest as many of the newest as its number and its layer say; some none."""

    name = "staggered"

    def held(self, layer: int, head: int, total: int) -> int:
        return min(total, 5 + 9 * ((head + layer) % 3))

    def kept(self, site: Site, step: Step, slot: RaggedSlot, stage: RaggedStage, q: Tensor) -> Sequence[Kept]:
        return [self.places(self.held(site.layer, head, n + step.count), n + step.count) for head, n in enumerate(slot.lengths)]

    def places(self, held: int, total: int) -> Kept:
        return [range(total)] if held == total else [range(5), range(total - held + 5, total)]

    def entries(self, layout: Layout, site: Site) -> int:
        return sum(self.held(site.layer, head, layout.cacheable) for head in range(layout.kv_heads))


@dataclass
class Scored(Staggered):
    """As many, but those with the longest values: a choice that the host never sees, another in each row."""

    name = "scored"

    def kept(self, site: Site, step: Step, slot: RaggedSlot, stage: RaggedStage, q: Tensor) -> Sequence[Kept]:
        found: dict[int, Kept] = {}
        for extent in stage.extents:
            size = extent.of(stage.v).norm(dim=-1)
            for at in range(extent.heads):
                head = extent.first + at
                found[head] = size[:, at].topk(self.held(site.layer, head, extent.length), -1).indices.sort(-1).values
        return [found[head] for head in sorted(found)]


def made(cls: type[PerHead], kv_heads: int = 4, budget: Fraction = Fraction(5, 11)) -> PerHead:
    """A method of a test, or one of the registry at a budget at which something has to go."""
    if cls.name not in METHODS:
        return cls()
    layout = layout_of(kv_heads)
    given = calibration(cls, layout)
    return cls.build({**given, **cls.build(given).fit(budget, layout)})


BUILT_IN = [cls for name in METHODS if issubclass(cls := METHODS.get(name), PerHead)]


def run(method: PerHead, codec: str = "native", kv_heads: int = 4, *watches: Watch, memory: Memory | None = None,
        rows: Sequence[int] = (0, 1, 2)) -> Ran:  # fmt: skip
    """A generation of some of the three rows."""
    whole = layout_of(kv_heads)
    feed = Feed(whole)
    feed.rows = list(rows)
    zeros = (0,) * len(rows)
    layout = replace(whole, condition=zeros, seeds=tuple(whole.seeds[row] for row in rows), branches=zeros)
    return per_head.run(method, layout, feed, memory or Memory("cpu", CODECS[codec]), *watches)


def planned(layout: Layout, method: Staggered) -> list[dict[Site, list[int]]]:
    """The lengths behind every pass, from the rule alone; the last scale is not kept."""
    found: list[dict[Site, list[int]]] = []
    for step in scale_steps(layout)[:-1]:
        total = step.first + step.count
        found.append({Site("decoder", layer): [method.held(layer, head, total) for head in range(layout.kv_heads)]
                      for layer in range(layout.layers)})
    return [*found, found[-1]]


