"""Two generations of a case use the same storage and give the same tokens; a method keeps nothing outside its memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Step
from cachemark.contract.method import Method

from .cells import Cell, cells, generate, halved, recorded
from .test_capture import captured


def tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor that can be reached from ``value``, its memory left out."""
    if id(value) in seen or isinstance(value, Memory):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part, seen)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part, seen)
    elif type(value).__module__.startswith("cachemark.") and hasattr(value, "__dict__"):
        yield from tensors(vars(value), seen)


def outside(method: Method, memory: Memory) -> list[tuple[int, ...]]:
    """Shapes of the tensors that a method holds and its memory does not."""
    inside = set(memory.pointers().values())
    return [tuple(t.shape) for t in tensors(vars(method), set()) if t.untyped_storage().data_ptr() not in inside]


@pytest.mark.parametrize("cell", halved(cells()))
def test_a_second_generation_repeats_the_first(cell: Cell) -> None:
    first, (second, _) = recorded(cell), captured(cell)
    assert second.memory is first.memory
    assert torch.equal(second.tokens, first.tokens)
    assert torch.equal(second.logits, first.logits)


@pytest.mark.parametrize("cell", halved(cells()))
def test_storage_stays_where_it_is(cell: Cell) -> None:
    first, (second, _) = recorded(cell), captured(cell)
    held = [part.data_ptr() for bank in first.method.banks for part in (*bank.k, *bank.v, bank.visual)]
    again = [part.data_ptr() for bank in second.method.banks for part in (*bank.k, *bank.v, bank.visual)]
    assert again == held
    assert set(again) <= set(second.memory.pointers().values())


@pytest.mark.parametrize("cell", halved(cells()))
def test_a_method_keeps_nothing_outside_its_memory(cell: Cell) -> None:
    """Else its bytes would be missing from the figures, and a graph would read storage that a later generation has left."""
    ran = recorded(cell)
    assert outside(ran.method, ran.memory) == []


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
    assert outside(ran.method, memory) == [(cell.layout.visual - 1,)]


def test_a_memory_serves_one_case() -> None:
    cell = next(cell for cell in cells() if cell.cls.evicts)
    memory = cell.memory()
    generate(cell, cell.tight(), memory=memory)
    with pytest.raises(ValueError, match="one Memory serves one case"):
        generate(cell, Method(), memory=memory)
