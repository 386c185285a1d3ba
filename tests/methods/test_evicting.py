"""Random eviction: one entry at a time, uniform, from the sample's own stream. The edges and scores of evicting methods."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Layout, Site, Step, scale_steps, squares
from cachemark.contract.method import Method
from cachemark.core.errors import BadPlugin
from cachemark.kit.driver import Onlooker as Watch
from cachemark.kit.driver import RasterFeed as Feed
from cachemark.kit.driver import drive, layout_of, watched
from cachemark.kit.next_token import Cell
from cachemark.methods.base.evicting import Evicting, Scored
from cachemark.methods.random import Random

B = 9
LAYOUT = layout_of((1,) * 48, lines=5, line=8, head_dim=4)
TURNS = LAYOUT.visual - 1 - B  # passes in which one goes


class Ranks(Watch):
    """How many live visual tokens were older than the one that went, (turns, layers, rows, kv_heads)."""

    def __init__(self) -> None:
        self.turns: list[Tensor] = []
        self._before: list[Tensor] = []

    def before_end(self, method: Method, step: Step) -> None:
        self._before = [slot.visual[..., : slot.live[0]].clone() for slot in method.slots.values()]

    def after_end(self, method: Method, step: Step) -> None:
        gone = []
        for slot, before in zip(method.slots.values(), self._before, strict=True):
            if slot.live[0] == before.size(-1):
                return
            before[..., -1] = step.first  # the token just fed has no number before the pass is closed
            ordered, remaining = before.sort(-1).values, slot.visual[..., : slot.live[0]].sort(-1).values
            differs = ordered[..., :-1] != remaining
            gone.append(torch.where(differs.any(-1), differs.long().argmax(-1), remaining.size(-1)) - 1)  # −1: the condition
        self.turns.append(torch.stack(gone))


def ranks(layout: Layout = LAYOUT) -> Tensor:
    watch = Ranks()
    drive(watched(Random(B=B), watch), layout, Feed(layout))
    return torch.stack(watch.turns)


@pytest.fixture(scope="module")
def drawn() -> Tensor:
    return ranks()


def test_one_goes_as_soon_as_the_budget_is_exceeded(drawn: Tensor) -> None:
    assert drawn.shape == (TURNS, LAYOUT.layers, LAYOUT.rows, LAYOUT.kv_heads)
    assert int(drawn.min()) == 0, "the condition went"
    assert int(drawn.max()) == B - 1, "the token just fed is never drawn, each of the B others may be"


def test_it_is_uniform(drawn: Tensor) -> None:
    counts = drawn.flatten().bincount(minlength=B).double()
    squares = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert abs(squares - (B - 1)) < 4 * math.sqrt(2 * (B - 1))


@pytest.mark.parametrize("axis", range(4), ids=["token", "layer", "row", "head"])
def test_neighbours_draw_for_themselves(drawn: Tensor, axis: int) -> None:
    latter, other = drawn.narrow(axis, 1, drawn.size(axis) - 1), drawn.narrow(axis, 0, drawn.size(axis) - 1)
    same = float((latter == other).double().mean())
    assert abs(same - 1 / B) < 4 * math.sqrt((1 / B) * (1 - 1 / B) / latter.numel())


def test_a_draw_belongs_to_seed_and_branch(drawn: Tensor) -> None:
    turned = replace(LAYOUT, seeds=LAYOUT.seeds[::-1])
    assert torch.equal(ranks(turned).flip(2), drawn), "the place in the batch counts"
    other = replace(LAYOUT, branches=(1,) * LAYOUT.rows)
    assert float((ranks(other) == drawn).double().mean()) < 2 / B, "the two branches of a sample share their draws"


# -- edges and scores -------------------------------------------------------------------------------------------------
@dataclass
class OfNoEdge(Evicting):
    """Evicts after an edge of a next-token model."""

    name = "of no edge"
    paradigms = ("next-token", "next-scale")


@pytest.mark.parametrize("edge", ["token", "line"])
def test_a_next_scale_model_has_no_lines_to_evict_by(edge: str) -> None:
    layout = Layout("next-scale", (1,), 0, 0, 2, 2, 4, 1, seeds=(0,), branches=(0,), dtype=torch.float32, scales=squares((1, 2, 4)))
    method = type("Edged", (OfNoEdge,), {"evict_after": edge})(B=3)
    seen = [method.attended(layout, Site("decoder", 0), step) for step in scale_steps(layout)]
    assert seen == [1 + 0 + 1, 1 + 1 + 4, 1 + 3 + 16]
    assert [method.evicted(layout, step) for step in scale_steps(layout)] == [0, 0, 0]


@pytest.mark.parametrize("when", ["token", "line"])
def test_the_condition_stays_when_every_entry_is_protected(when: str) -> None:
    conditions = set()

    @dataclass
    class Protects(Scored):
        name = "protects"
        evict_after = when
        slack = int(when == "token")

        def score(self, step: Step, slots: SlotBank) -> Tensor:
            table = slots.table()
            conditions.add(int((table < 0).sum(-1).min()))
            return torch.full(table.shape, float("inf"))

    cell = Cell(Protects, (), "native", "mha")
    cell.run(cell.tight(), bare=True)
    assert conditions == {1}


def test_scores_of_another_shape_name_both_shapes() -> None:
    @dataclass
    class PerHead(Scored):
        name = "per_head"

        def score(self, step: Step, slots: SlotBank) -> Tensor:
            return slots.table().float().repeat(1, 1, 2, 1)

    cell = Cell(PerHead, (), "native", "mha")
    with pytest.raises(BadPlugin, match=r"per_head: score returns a tensor of shape .* Return one score per live entry"):
        cell.run(cell.tight(), bare=True)
