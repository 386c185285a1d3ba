"""Neutral knobs equal the full cache with the same attention function, bit for bit."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch

from cachemark.cache.method import Method

from .cells import Cell, Ran, cells, generate, label


@dataclass
class Massive(Method):
    """The full cache on the attention function that returns its probabilities."""

    @property
    def needs_mass(self) -> bool:
        return True


@functools.cache
def full(codec: str, attention: str, mass: bool) -> Ran:
    cell = Cell(Massive if mass else Method, (), codec, attention)
    return generate(cell, cell.cls())


@pytest.mark.parametrize("cell", cells(), ids=label)
def test_neutral_knobs_are_the_full_cache(cell: Cell) -> None:
    neutral = cell.at(Fraction(1))
    expected, ran = full(cell.codec, cell.attention, neutral.needs_mass), generate(cell, neutral)
    assert torch.equal(ran.logits, expected.logits)
    assert torch.equal(ran.tokens, expected.tokens)


@pytest.mark.parametrize("cell", [cell for cell in cells(evicting=True) if cell.codec == "native"], ids=label)
def test_a_tight_budget_is_not_neutral(cell: Cell) -> None:
    """Otherwise the test above would say nothing about the model that it runs on."""
    method = cell.tight()
    expected = full(cell.codec, cell.attention, method.needs_mass)
    assert not torch.equal(generate(cell, method, forced=expected.tokens).logits, expected.logits)
