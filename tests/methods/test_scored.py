"""Scores of :class:`~cachemark.methods.base.evicting.Scored`."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Step
from cachemark.kit.next_token import Cell
from cachemark.methods.base.evicting import Scored


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
