"""The contract of a method whose heads keep different numbers of entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from cachemark.cache.codec import CODECS
from cachemark.cache.layout import Layout, Site, Step, scale_steps
from cachemark.cache.ragged import Kept, RaggedSlot, RaggedWorkspace
from cachemark.contract.heads import PerHead
from cachemark.contract.method import Method
from cachemark.core.errors import BadPlugin, Unsupported
from cachemark.kit.driver import Onlooker, drive
from cachemark.kit.next_scale import SIDES, ScaleFeed, layout_of
from cachemark.methods.full import Full

from .cells import ALONE
from .scales import BUILT_IN, Scored, Staggered, lengths, made, run


@dataclass
class LiveBytes(Onlooker):
    """Bytes that are said to live behind each pass."""

    behind: list[int] = field(default_factory=list)

    def after_end(self, method: Method, step: Step) -> None:
        assert isinstance(method, PerHead)
        self.behind.append(method.live_bytes)


def planned(layout: Layout, method: Staggered) -> list[dict[Site, list[int]]]:
    """The lengths behind every pass, from the rule alone; the last scale is not kept."""
    history: list[dict[Site, list[int]]] = []
    for step in scale_steps(layout)[:-1]:
        total = step.first + step.count
        history.append({Site("decoder", layer): [method.held(layer, head, total) for head in range(layout.kv_heads)]
                      for layer in range(layout.layers)})
    return [*history, history[-1]]


HEADS = pytest.mark.parametrize(("attention", "kv_heads"), [("mha", 4), ("gqa", 2)])


@pytest.mark.parametrize("cls", [Staggered, Scored, *BUILT_IN])
def test_heads_differ(cls: type[PerHead]) -> None:
    """Else the checks of the kit say nothing about it."""
    assert max(len(set(each)) for each in lengths(run(made(cls)))[-1].values()) > 1


@HEADS
def test_a_method_that_keeps_everything_is_the_full_cache_bit_for_bit(attention: str, kv_heads: int) -> None:
    layout = layout_of(kv_heads)
    expected = drive(Full(), layout, ScaleFeed(layout))
    assert all(torch.equal(expected[where], out) for where, out in run(PerHead(), attention=attention).answers.items())


@pytest.mark.parametrize("cls", [Staggered, Scored])
@pytest.mark.parametrize(("codec", "attention"), [("native", "mha"), *((codec, "gqa") for codec in ALONE)])
def test_bytes_are_the_sum_of_the_plan_at_every_scale(cls: type[Staggered], codec: str, attention: str) -> None:
    live = LiveBytes()
    ran = run(cls(), live, codec=codec, attention=attention)
    layout, method = ran.method.layout, ran.method
    assert isinstance(method, Staggered)
    plan = planned(layout, method)
    assert lengths(ran) == plan
    entry_bytes = layout.rows * CODECS[codec].pair_bytes(layout.head_dim, layout.dtype)
    sums = [{site: sum(heads) for site, heads in sites.items()} for sites in plan]
    assert live.behind == [entry_bytes * sum(by_site.values()) for by_site in sums]
    assert method.logical_bytes == max(live.behind)
    most = {site: max(by_site[site] for by_site in sums) for site in sums[0]}
    assert ran.memory.nbytes("slots") == entry_bytes * sum(most.values())
    assert {site: slot.capacity for site, slot in method.ragged.items()} == most


class Shrinks(Staggered):
    """The second layer gives up at the fourth scale what the first one gains there."""

    def held(self, layer: int, head: int, total: int) -> int:
        late = total >= sum(side**2 for side in SIDES[:4])
        return 10 if (layer == 0) is late else min(total, 5)

    def select(self, site: Site, step: Step, slot: RaggedSlot, workspace: RaggedWorkspace, q: Tensor) -> Sequence[Kept]:
        return [[range(min(n + step.count, self.held(site.layer, head, step.first + step.count)))] for head, n in enumerate(slot.lengths)]

    def entries(self, layout: Layout, site: Site) -> int:
        return 10 * layout.kv_heads


def test_the_high_water_lies_between_two_layers() -> None:
    """Layers have 10 + 5 + 5 or 5 + 10 + 10 entries after a pass, 10 + 10 + 10 within the fourth."""
    ran = run(Shrinks())
    layout = ran.method.layout
    entry_bytes = layout.rows * layout.kv_heads * CODECS["native"].pair_bytes(layout.head_dim, layout.dtype)
    assert (ran.method.logical_bytes, ran.method.peak_live_bytes) == (25 * entry_bytes, 30 * entry_bytes)
    assert ran.memory.nbytes("slots") == 30 * entry_bytes


def test_too_small_a_declaration_is_refused() -> None:
    class Denies(Staggered):
        def entries(self, layout: Layout, site: Site) -> int:
            return super().entries(layout, site) - 1

    with pytest.raises(BadPlugin, match="47 entries of all heads do not fit into 46"):
        run(Denies())


def test_keys_that_share_ranges_are_refused() -> None:
    with pytest.raises(Unsupported, match="kivi4 shares the ranges of keys"):
        run(Staggered(), codec="kivi4")
