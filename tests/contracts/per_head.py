"""Methods whose heads keep different numbers of entries, driven by random queries, keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from torch import Tensor

from cachemark.cache.layout import Layout, Site, Step, scale_steps
from cachemark.cache.ragged import Kept, RaggedSlot, RaggedWorkspace
from cachemark.contract.heads import PerHead
from cachemark.contract.method import Method
from cachemark.kit.common import KitRun
from cachemark.kit.driver import Onlooker as Watch
from cachemark.kit.next_scale import PER_HEAD_BUDGET, ScaleCell
from cachemark.methods.registry import METHODS


@dataclass
class Staggered(PerHead):
    """Each head keeps the first two scales and a number of the newest tokens by layer and head."""

    name = "staggered"
    neutral = None

    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        return {}

    def held(self, layer: int, head: int, total: int) -> int:
        return min(total, 5 + 9 * ((head + layer) % 3))

    def select(self, site: Site, step: Step, slot: RaggedSlot, workspace: RaggedWorkspace, q: Tensor) -> Sequence[Kept]:
        return [self.places(self.held(site.layer, head, n + step.count), n + step.count) for head, n in enumerate(slot.lengths)]

    def places(self, held: int, total: int) -> Kept:
        return [range(total)] if held == total else [range(5), range(total - held + 5, total)]

    def entries(self, layout: Layout, site: Site) -> int:
        return sum(self.held(site.layer, head, layout.cacheable) for head in range(layout.kv_heads))

    def attended_by_heads(self, layout: Layout, site: Site, step: Step) -> int:
        return sum(self.held(site.layer, head, step.first) + step.count for head in range(layout.kv_heads))


@dataclass
class Scored(Staggered):
    """As many, but those with the longest values: a choice that the host never sees, another in each row."""

    name = "scored"

    def select(self, site: Site, step: Step, slot: RaggedSlot, workspace: RaggedWorkspace, q: Tensor) -> Sequence[Kept]:
        found: dict[int, Kept] = {}
        for extent in workspace.extents:
            size = extent.of(workspace.v).norm(dim=-1)
            for at in range(extent.heads):
                head = extent.first + at
                found[head] = size[:, at].topk(self.held(site.layer, head, extent.length), -1).indices.sort(-1).values
        return [found[head] for head in sorted(found)]


def made(cls: type[PerHead], budget: Fraction = PER_HEAD_BUDGET) -> Any:
    """A method at a budget at which something has to go."""
    return ScaleCell(cls, (), "native", "mha").at(budget)


BUILT_IN = [cls for name in METHODS if issubclass(cls := METHODS.get(name), PerHead)]


@dataclass
class LiveBytes(Watch):
    """Bytes that are said to live behind each pass."""

    behind: list[int] = field(default_factory=list)

    def after_end(self, method: Method, step: Step) -> None:
        assert isinstance(method, PerHead)
        self.behind.append(method.live_bytes)


def run(method: PerHead, *watches: Watch, codec: str = "native", attention: str = "mha") -> KitRun:
    """A recorded run."""
    return ScaleCell(type(method), (), codec, attention).run(method, *watches)


def lengths(ran: KitRun) -> list[dict[Site, list[int]]]:
    """Live entries of each head of each site behind each pass."""
    return [moment.after for moment in ran.moments]  # type: ignore[misc]


def planned(layout: Layout, method: Staggered) -> list[dict[Site, list[int]]]:
    """The lengths behind every pass, from the rule alone; the last scale is not kept."""
    found: list[dict[Site, list[int]]] = []
    for step in scale_steps(layout)[:-1]:
        total = step.first + step.count
        found.append({Site("decoder", layer): [method.held(layer, head, total) for head in range(layout.kv_heads)]
                      for layer in range(layout.layers)})
    return [*found, found[-1]]
