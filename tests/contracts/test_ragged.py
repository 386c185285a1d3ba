"""Rows whose conditions differ in length: each row keeps the rules by itself, as if it were alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Step
from cachemark.kit import ragged
from cachemark.methods.base.evicting import Evicting

from .cells import Cell


@dataclass
class FromTheFirstRow(Evicting):
    """Broken on purpose: takes the first row's condition for everybody's."""

    evict_after = "token"
    slack = 1

    def evict(self, step: Step, slots: SlotBank) -> None:
        if slots.live_visual > self.B:
            slots.evict(torch.full((*slots.visual.shape[:3], 1), slots.runs[0].condition))


def test_a_row_that_is_taken_for_another_is_caught() -> None:
    assert list(ragged.rows_equal_single_rows(Cell(FromTheFirstRow, (), "native", "mha")))
