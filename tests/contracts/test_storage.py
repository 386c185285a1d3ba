"""Two generations of a case use the same storage and give the same tokens; a method keeps nothing outside its memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Step
from cachemark.contract.method import Method
from cachemark.kit import checks
from cachemark.kit.reachable import outside

from .cells import Cell, cells, generate, halved, recorded


@pytest.mark.parametrize("cell", halved(cells()))
def test_storage_stays_where_it_is(cell: Cell) -> None:
    first, (second, _) = recorded(cell), checks.captured(cell)
    held = [part.data_ptr() for bank in first.method.banks for part in (*bank.k, *bank.v, bank.visual)]
    again = [part.data_ptr() for bank in second.method.banks for part in (*bank.k, *bank.v, bank.visual)]
    assert again == held
    assert set(again) <= set(second.memory.pointers().values())


@dataclass
class Concatenates(Method):
    """Broken on purpose: state that grows outside the memory."""

    def evict(self, step: Step, slots: SlotBank) -> None:
        self.ages = torch.cat((getattr(self, "ages", torch.zeros(0)), torch.zeros(1)))

    evict_after = "token"


def test_state_outside_the_memory_is_caught() -> None:
    cell = Cell(Concatenates, (), "native", "mha")
    method, memory = Concatenates(), cell.memory()
    ran = generate(cell, method, memory=memory)
    assert outside(ran.method, memory) == [("ages", (cell.layout.visual - 1,))]


def test_a_memory_serves_one_case() -> None:
    cell = next(cell for cell in cells() if cell.cls.evicts)
    memory = cell.memory()
    generate(cell, cell.tight(), memory=memory)
    with pytest.raises(ValueError, match="one Memory serves one case"):
        generate(cell, Method(), memory=memory)
