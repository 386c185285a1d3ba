"""Methods whose heads keep different numbers of entries: served by uniform methods, or in next-scale models by themselves.

That such methods pass the kit, bytes and all, is in tests/kit (mixed_heads) and test_kit_checks.py (pyramidkv, adakv).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.codecs import CODECS
from cachemark.cache.layout import Layout, Site, Step
from cachemark.cache.ragged import Kept, RaggedSlot, RaggedWorkspace
from cachemark.contract import heads
from cachemark.contract.heads import HeadGroups, PerHead
from cachemark.contract.method import Method
from cachemark.core.errors import BadParameter, BadPlugin, Unsupported
from cachemark.kit import checks
from cachemark.kit.driver import RasterFeed, drive, layout_of
from cachemark.kit.next_scale import SIDES
from cachemark.kit.next_token import Cell
from cachemark.methods.base.evicting import visual_budget
from cachemark.methods.window import Window

from .scales import BUILT_IN, Scored, Staggered, lengths, made, run


@dataclass
class Budgeted(HeadGroups):
    """Methods of the tests: a mean of ``mean`` visual entries."""

    mean: int = 0

    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        return {"mean": visual_budget(budget, layout)}

    def resolve(self, layout: Layout) -> None:
        if self.mean < 1:
            raise BadParameter(f"{self.name}: mean = {self.mean} keeps nothing.", remedy="Give 1 or more.")
        super().resolve(layout)

    def budget(self, layout: Layout, layer: int, head: int) -> int:
        """Of a head; at the whole budget all keep all."""
        return layout.visual if self.mean >= layout.visual else max(2, self.mean + 3 * ((head + layer) % 3 - 1))


@dataclass
class Windows(Budgeted):
    """Every head has a window of another width."""

    name = "staggered"

    def served(self, layout: Layout, site: Site) -> Sequence[Method]:
        return [Window(B=self.budget(layout, site.layer, head)) for head in range(layout.kv_heads)]


def test_each_head_is_what_it_is_in_a_uniform_cache() -> None:
    """Driven by one feed, each head answers as under the uniform method of its budget."""
    layout = layout_of()
    feed = RasterFeed(layout)
    answers = drive(Windows(mean=12), layout, feed)
    for head in range(layout.kv_heads):
        for layer in range(layout.layers):
            expected = drive(Window(B=Windows(mean=12).budget(layout, layer, head)), layout, feed)
            for (index, site), out in answers.items():
                if site.layer == layer:
                    torch.testing.assert_close(out[:, head], expected[index, site][:, head], rtol=0, atol=1e-6)


def test_heads_that_are_mixed_up_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Crossed(Windows):
        """A class of its own, so that what is broken is no run of another test."""

        name = "crossed"

    monkeypatch.setattr(heads, "select_heads", lambda x, heads: torch.stack([x[:, head] for head in reversed(heads)], 1))
    assert list(checks.evicting_is_masking(Cell(Crossed, (), "native", "mha")))


def test_a_group_that_hides_what_it_should_evict_is_found_by_its_bytes() -> None:
    @dataclass
    class Roomy(Window):
        name = "roomy"

        def capacity(self, layout: Layout, site: Site) -> int:
            return layout.stored

    @dataclass
    class Wasteful(Budgeted):
        name = "wasteful"

        def served(self, layout: Layout, site: Site) -> Sequence[Method]:
            return [(Roomy if head else Window)(B=self.mean) for head in range(layout.kv_heads)]

    cell = Cell(Wasteful, (), "native", "mha")
    assert list(checks.declared_is_used(cell))
    assert not list(checks.evicting_is_masking(cell))


def test_a_method_for_every_head_is_asked_for() -> None:
    @dataclass
    class Short(Windows):
        name = "short"

        def served(self, layout: Layout, site: Site) -> Sequence[Method]:
            return [*super().served(layout, site)][:-1]

    with pytest.raises(BadParameter, match=r"short: 3 methods for the heads of layer 0\. .*each of the 4 K/V heads"):
        Short(mean=8).resolve(layout_of())
    with pytest.raises(BadParameter, match="window: B = 0 is out of range"):
        type("Nothing", (Windows,), {"budget": lambda *_: 0, "name": "nothing"})(mean=8).resolve(layout_of())


# -- next-scale -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cls", [Staggered, Scored, *BUILT_IN])
def test_heads_differ(cls: type[PerHead]) -> None:
    """Else the checks of the kit say nothing about it."""
    assert max(len(set(each)) for each in lengths(run(made(cls)))[-1].values()) > 1


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
