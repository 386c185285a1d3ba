"""A sample has the same logits, entries and tokens in any batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from cachemark.cache.bank import SlotBank
from cachemark.cache.codec import CODECS
from cachemark.cache.layout import Step
from cachemark.contract.method import Method
from cachemark.kit.batches import GAP, Pass, compare, judge
from cachemark.kit.batches import Agreement as Verdict
from cachemark.methods.base.evicting import Evicting
from cachemark.methods.registry import METHODS

from .cells import Cell, cells, halved

SEEDS = range(64)
BATCHES = (28, 16, 16, 4)  # a small one because it takes another path through the matrix product
SMALL, LARGE = 4, 5
NEEDS_LARGE = {"rkv", "linear"}  # what they always keep leaves them no choice on the small grid


CELLS = [cell for grid in (SMALL, LARGE) for cell in cells(grid=grid) if (cell.cls.name in NEEDS_LARGE) is (grid == LARGE)]


@pytest.mark.parametrize("cell", halved(CELLS))
def test_a_sample_is_the_same_in_any_batch(cell: Cell) -> None:
    verdict, same = judge(cell, BATCHES)
    assert verdict.faults == []
    assert same >= len(SEEDS) - 1
    if CODECS[cell.codec].exact:
        assert len(verdict.excused) <= 1, "too many ties: the scores of this model say nothing"


# ------------------------------------------------------------------------------------------ what must be noticed


@dataclass
class ByRow(Evicting):
    """Broken on purpose: which entry goes depends on the row's place in the batch."""

    evict_after = "token"
    slack = 1

    def evict(self, step: Step, slots: SlotBank) -> None:
        if slots.live_visual > self.B:
            rows = torch.arange(slots.layout.rows)[:, None, None] % (self.B - 1)
            slots.evict(1 + rows.expand(len(slots.sites), -1, slots.layout.kv_heads, 1))


@dataclass
class Shared(METHODS.get("h2o")):  # type: ignore[misc]
    """Broken on purpose: a head's score borrows from the other samples of the batch."""

    def evict(self, step: Step, slots: SlotBank) -> None:
        self.mass += 0.05 * self.mass.mean(1, keepdim=True)
        super().evict(step, slots)


def test_a_choice_that_depends_on_the_batch_is_caught() -> None:
    broken: list[type[Method]] = [ByRow, Shared]
    for cls in broken:
        verdict, _ = judge(Cell(cls, (), "native", "mha", SMALL), BATCHES)
        assert any("other entries kept" in fault[2] for fault in verdict.faults), cls.__name__


def one_pass(held: list[int], gap: float, codes: float = 0.0) -> list[Pass]:
    two_rows = torch.tensor([[held], [held]])
    return [Pass([two_rows], [torch.full((2, 1), gap)], [torch.full((2, 1), codes)])]


@pytest.mark.parametrize(("change", "faults", "excused"), [
    ({}, 0, {}),
    ({"held": [0, 2], "gap": GAP / 2}, 0, {9: 0}),
    ({"held": [0, 2], "gap": GAP * 2}, 1, {}),
    ({"codes": 1.0}, 0, {9: 0}),
])  # fmt: skip
def test_only_a_tie_or_another_rounding_is_excused(change: dict[str, Any], faults: int, excused: dict[int, int]) -> None:
    plain: dict[str, Any] = {"held": [0, 1], "gap": 1.0}
    verdict, logits = Verdict(), torch.zeros(1, 1, 8)
    compare([9], one_pass(**plain), one_pass(**{**plain, **change}), (logits, logits), verdict)
    assert (len(verdict.faults), verdict.excused) == (faults, excused)


def test_logits_apart_are_a_fault() -> None:
    verdict, logits = Verdict(), torch.zeros(1, 1, 8)
    compare([9], one_pass([0], 1.0), one_pass([0], 1.0), (logits, logits + 2e-4), verdict)
    assert len(verdict.faults) == 1
    compare([8], one_pass([0], 1.0), one_pass([0], 1.0), (logits, logits.new_full(logits.shape, torch.nan)), verdict)
    assert len(verdict.faults) == 2
