"""Evicting equals masking, and the oracle that says so would notice a wrong move."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import RowRun
from cachemark.contract.method import Method
from cachemark.kit import checks
from cachemark.kit.oracle import TOLERANCE, Shadow
from cachemark.methods.registry import METHODS

from .cells import Cell, generate

FILLING = ("h2o", "linear", "random", "rkv")  # these evict by `SlotBank.evict`, the others by `evict_place`


# ------------------------------------------------------------------------------------------ the oracle itself

FILL, EVICT_PLACE = SlotBank._fill, SlotBank.evict_place


def values_stay(self: SlotBank, run: RowRun, n: int, places: Tensor) -> None:
    """K moves into the hole and V does not."""
    before = [part.clone() for part in self.v]
    FILL(self, run, n, places)
    for part, old in zip(self.v, before, strict=True):
        part.copy_(old)


def values_beside(self: SlotBank, run: RowRun, n: int, places: Tensor) -> None:
    """V moves into the place next to the hole."""
    before = [part.clone() for part in self.v]
    FILL(self, run, n, places)
    for part, old in zip(self.v, before, strict=True):
        part.copy_(torch.where(part == old, old, part.roll(1, dims=-2)))


def numbers_stay(self: SlotBank, run: RowRun, n: int, places: Tensor) -> None:
    """K and V move and ``visual`` does not, so that the method no longer knows what it holds."""
    before = self.visual.clone()
    FILL(self, run, n, places)
    self.visual.copy_(before)


def one_off(self: SlotBank, number: int, place: int) -> None:
    """V of the tail lands in the place before the one that was evicted."""
    n = self.live[number]
    before = [part.clone() for part in self.v]
    EVICT_PLACE(self, number, place)
    for part, old in zip(self.v, before, strict=True):
        part.copy_(old)
        part[:, self.runs[number].rows, :, place - 1] = old[:, self.runs[number].rows, :, n - 1]


def of(name: str) -> Cell:
    return Cell(METHODS.get(name), (), "native", "mha")


def deviation(method: Method, cell: Cell) -> float:
    shadow = Shadow()
    generate(cell, method, shadow)
    return shadow.worst


@pytest.mark.parametrize("broken", [values_stay, values_beside, numbers_stay])
@pytest.mark.parametrize("name", FILLING)
def test_a_wrong_filling_is_caught_here_and_only_here(monkeypatch: pytest.MonkeyPatch, name: str, broken: object) -> None:
    cell = of(name)
    monkeypatch.setattr(SlotBank, "_fill", broken)
    assert not list(checks.neutral_is_full(cell)), "the neutral test alone would let it pass"
    assert deviation(cell.tight(), cell) > TOLERANCE


@pytest.mark.parametrize("name", ["streaming", "window"])
def test_a_wrong_place_is_caught_here_and_only_here(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    cell = of(name)
    monkeypatch.setattr(SlotBank, "evict_place", one_off)
    assert not list(checks.neutral_is_full(cell))
    assert deviation(cell.tight(), cell) > TOLERANCE
