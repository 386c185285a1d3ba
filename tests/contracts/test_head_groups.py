"""Next-token methods whose heads keep different numbers of entries, each served by a uniform method.

That such a method passes the kit is in tests/kit (mixed_heads).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.codec import CODECS
from cachemark.cache.layout import Layout, Site
from cachemark.contract import heads
from cachemark.contract.heads import HeadGroups
from cachemark.contract.method import Method
from cachemark.core.errors import BadParameter
from cachemark.kit import checks
from cachemark.kit.common import recorded
from cachemark.kit.driver import RasterFeed, drive, layout_of
from cachemark.kit.next_token import Cell
from cachemark.methods.base.evicting import visual_budget
from cachemark.methods.h2o import H2O
from cachemark.methods.linear import Linear
from cachemark.methods.window import Window


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
class Staggered(Budgeted):
    """Every head has a window of another width."""

    name = "staggered"

    def served(self, layout: Layout, site: Site) -> Sequence[Method]:
        return [Window(B=self.budget(layout, site.layer, head)) for head in range(layout.kv_heads)]


@dataclass
class Mixed(Budgeted):
    """Even heads have a narrow window, odd ones twice as many heavy hitters."""

    name = "mixed"

    def served(self, layout: Layout, site: Site) -> Sequence[Method]:
        if self.mean >= layout.visual:
            return [Method()] * layout.kv_heads
        return [H2O(B=self.mean) if head % 2 else Window(B=max(2, self.mean // 2)) for head in range(layout.kv_heads)]


@pytest.mark.parametrize("cls", [Staggered, Mixed])
@pytest.mark.parametrize("codec", ["native", "kivi4"])
def test_bytes_follow_the_budgets_of_all_heads_to_the_byte(cls: type[Budgeted], codec: str) -> None:
    """A head stores one token above its budget until the eviction, and the condition."""
    ran, kind = recorded(Cell(cls, (), codec, "mha")), CODECS[codec]
    method, layout = ran.method, ran.method.layout
    assert isinstance(method, Budgeted)
    widest: list[int] = [served.B + 1 for layer in range(layout.layers)  # type: ignore[attr-defined]
                         for served in method.served(layout, Site("decoder", layer))]
    assert len(set(widest)) > 1, "heads or layers must differ, or nothing is tested"
    entries = sum(min(most, layout.cacheable) + layout.longest_condition for most in widest)
    shared = len(widest) * kind.shared_bytes(layout.head_dim, layout.dtype, layout.longest_condition + layout.visual)
    expected = layout.rows * (entries * kind.pair_bytes(layout.head_dim, layout.dtype) + shared)
    assert ran.memory.nbytes("slots") == method.logical_bytes == expected


def test_heads_that_are_all_alike_are_the_uniform_method_bit_for_bit() -> None:
    @dataclass
    class Alike(Budgeted):
        name = "alike"

        def served(self, layout: Layout, site: Site) -> Sequence[Method]:
            return [Linear(B=self.mean)] * layout.kv_heads

    cell = Cell(Alike, (), "native", "mha")
    mine, theirs = (cell.run(method) for method in (Alike(mean=24), Linear(B=24)))
    assert torch.equal(mine.logits, theirs.logits)
    assert mine.memory.nbytes("slots") == theirs.memory.nbytes("slots")


def test_each_head_is_what_it_is_in_a_uniform_cache() -> None:
    """Driven by one feed, each head answers as under the uniform method of its budget."""
    layout = layout_of()
    feed = RasterFeed(layout)
    answers = drive(Staggered(mean=12), layout, feed)
    for head in range(layout.kv_heads):
        for layer in range(layout.layers):
            expected = drive(Window(B=Staggered(mean=12).budget(layout, layer, head)), layout, feed)
            for (index, site), out in answers.items():
                if site.layer == layer:
                    torch.testing.assert_close(out[:, head], expected[index, site][:, head], rtol=0, atol=1e-6)


def reversed_heads(x: Tensor, heads: Sequence[int]) -> Tensor:
    return torch.stack([x[:, head] for head in reversed(heads)], 1)


def test_heads_that_are_mixed_up_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Crossed(Mixed):
        """A class of its own, so that what is broken is no run of another test."""

        name = "crossed"

    monkeypatch.setattr(heads, "select_heads", reversed_heads)
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
    class Short(Staggered):
        name = "short"

        def served(self, layout: Layout, site: Site) -> Sequence[Method]:
            return [*super().served(layout, site)][:-1]

    with pytest.raises(BadParameter, match=r"short: 3 methods for the heads of layer 0\. .*each of the 4 K/V heads"):
        Short(mean=8).resolve(layout_of())
    with pytest.raises(BadParameter, match="window: B = 0 is out of range"):
        type("Nothing", (Staggered,), {"budget": lambda *_: 0, "name": "nothing"})(mean=8).resolve(layout_of())
