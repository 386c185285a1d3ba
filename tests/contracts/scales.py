"""Next-scale cases: all methods of the family × modes × codecs × {MHA, GQA}, methods whose heads differ, and a model for engines."""

import functools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.layout import Layout, Site, Step
from cachemark.cache.ragged import Kept, RaggedSlot, RaggedWorkspace
from cachemark.contract.heads import PerHead
from cachemark.contract.method import Method
from cachemark.core.spec import ENTRIES, Sampling
from cachemark.kit.common import KitRun
from cachemark.kit.driver import Onlooker, Place, Record, drive, watched
from cachemark.kit.next_scale import LAYERS, PER_HEAD_BUDGET, SIDES, WIDE, ScaleCell, ScaleFeed
from cachemark.kit.next_token import ATTENTION
from cachemark.methods.registry import METHODS
from cachemark.models.var import VAR, VARConfig
from cachemark.models.vision.msvq import MultiScaleQuantizer

from .cells import ALONE, WHOLE, modes_of


def contents_of(method: Method, layout: Layout) -> tuple[list[dict[Place, Tensor]], Any]:
    """Return the visual tokens of each site after each pass, (rows, kv_heads, live), and the method that was driven."""
    record = Record()
    driven = watched(method, record)
    drive(driven, layout, ScaleFeed(layout))
    return [{site: torch.stack(heads, 1) for site, heads in moment.contents.items()} for moment in record.moments], driven


# Modes of a method. One layer of three is demanding; online, the threshold lies inside the range of S of the feed.
MODES: dict[str, tuple[dict[str, Any], ...]] = {
    "ams_kv": ({"demanding": [1]}, {"demanding": [0, 2], "condensed": 0}, {"demanding": [], "c_min": 10, "c_max": 12},
               {"decide": "online", "theta": -1.6, "c_min": 21, "c_max": 46}),
    "full": ({}, {"store_last": True}),
    "window": ({}, {"keep_condition": False}),
    "scalekv": ({}, {"score": "softmax"}),
    "scale_groups": ({"remove": "condensed"}, {"remove": "intermediate"}, {"remove": "local"}),
}


def cells() -> list[ScaleCell]:
    """Return all cells of the registry: square maps, and of each mode also wide ones."""
    modes = modes_of(lambda cls: "next-scale" in cls.paradigms and cls.budget_kind == ENTRIES, MODES)
    square = [ScaleCell(cls, mode, codec, attention) for cls, number, mode in modes for codec in ALONE for attention in ATTENTION
              if codec in WHOLE or (number == 0 and attention == "gqa")]
    return [*square, *(ScaleCell(cls, mode, "native", "mha", WIDE) for cls, _, mode in modes)]


CELLS = cells()
DETERMINISTIC = [cell for cell in CELLS if dict(cell.mode).get("decide") != "online" and not cell.per_head]


# -- methods whose heads keep different numbers of entries --------------------------------------------------------------
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

    def places(self, count: int, total: int) -> Kept:
        return [range(total)] if count == total else [range(5), range(total - count + 5, total)]

    def entries(self, layout: Layout, site: Site) -> int:
        return sum(self.held(site.layer, head, layout.cacheable) for head in range(layout.kv_heads))

    def attended_by_heads(self, layout: Layout, site: Site, step: Step) -> int:
        return sum(self.held(site.layer, head, step.first) + step.count for head in range(layout.kv_heads))


class Scored(Staggered):
    """As many, but those with the longest values: a choice that the host never sees, another in each row."""

    name = "scored"

    def select(self, site: Site, step: Step, slot: RaggedSlot, workspace: RaggedWorkspace, q: Tensor) -> Sequence[Kept]:
        kept: dict[int, Kept] = {}
        for extent in workspace.extents:
            size = extent.view(workspace.v).norm(dim=-1)
            for at in range(extent.heads):
                head = extent.first + at
                kept[head] = size[:, at].topk(self.held(site.layer, head, extent.length), -1).indices.sort(-1).values
        return [kept[head] for head in sorted(kept)]


def made(cls: type[PerHead], budget: Fraction = PER_HEAD_BUDGET) -> Any:
    """A method at a budget at which something has to go."""
    return ScaleCell(cls, (), "native", "mha").at(budget)


BUILT_IN = [cls for name in METHODS if issubclass(cls := METHODS.get(name), PerHead)]


def run(method: PerHead, *watches: Onlooker, codec: str = "native", attention: str = "mha") -> KitRun:
    return ScaleCell(type(method), (), codec, attention).run(method, *watches)


# -- the model of tests of engines -------------------------------------------------------------------------------------
@functools.cache
def model() -> VAR:
    """Return random weights, scaled so that what attention reads shows in the logits."""
    quantizer = MultiScaleQuantizer(SIDES, 64, 8).requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for parameter in quantizer.parameters():
            parameter.normal_()
    made = VAR(VARConfig(LAYERS, 4, 64, SIDES, vocab=64, classes=10, width=8), quantizer).initialise(0).eval().requires_grad_(False)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter *= 6
    return made


SAMPLING = Sampling(cfg_scale=1.5, cfg_schedule="linear")
