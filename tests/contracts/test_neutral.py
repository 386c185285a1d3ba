"""Neutral knobs equal the full cache with the same attention function, bit for bit, and get there by the method's own path."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.layout import Site, Step
from cachemark.cache.slot import Slot
from cachemark.contract.method import Method
from cachemark.core import registry

from .capture import Capture, capturing
from .cells import Cell, Ran, cells, generate, halved, label, recorded
from .test_capture import ENDS, captured

UNDECIDED = (0, 1, ENDS[0])  # passes in which not even a tight budget evicts anything


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


def at_neutral(cell: Cell) -> tuple[Ran, Capture]:
    """A generation with neutral knobs, with every operation of the undecided passes seen."""
    with capturing(UNDECIDED) as (capture, watch):
        return generate(cell, cell.at(Fraction(1)), watch), capture


def differs_from_full(cell: Cell, ran: Ran) -> bool:
    expected = full(cell.codec, cell.attention, ran.method.needs_mass)
    return not (torch.equal(ran.logits, expected.logits) and torch.equal(ran.tokens, expected.tokens))


def detours(cell: Cell, ran: Ran, capture: Capture) -> list[str]:
    """How the way to neutral differs from the way to a tight budget before that decides anything."""
    tight, (_, seen) = recorded(cell), captured(cell)
    faults = []
    if ran.method.kernel != tight.method.kernel:
        faults.append(f"it attends with {ran.method.kernel}, at a tight budget with {tight.method.kernel}")
    if ran.memory.pointers().keys() != tight.memory.pointers().keys():
        faults.append(f"it keeps {sorted(ran.memory.pointers())}, at a tight budget {sorted(tight.memory.pointers())}")
    return faults + [f"pass {index} runs other operations" for index in UNDECIDED if capture.names(index) != seen.names(index)]


@functools.cache
def neutral(cell: Cell) -> tuple[Ran, Capture]:
    return at_neutral(cell)


@pytest.mark.parametrize("cell", halved(cells()))
def test_neutral_knobs_are_the_full_cache(cell: Cell) -> None:
    assert not differs_from_full(cell, neutral(cell)[0])


@pytest.mark.parametrize("cell", halved(cells()))
def test_there_is_no_short_cut_to_neutral(cell: Cell) -> None:
    assert detours(cell, *neutral(cell)) == []


@pytest.mark.parametrize("cell", [cell for cell in cells(evicting=True) if cell.codec == "native"], ids=label)
def test_a_tight_budget_is_not_neutral(cell: Cell) -> None:
    """Otherwise the tests above would say nothing about the model that they run on."""
    method = cell.tight()
    expected = full(cell.codec, cell.attention, method.needs_mass)
    assert not torch.equal(generate(cell, method, forced=expected.tokens).logits, expected.logits)


# ------------------------------------------------------------------------------------------ short cuts that must be seen

H2O: Any = registry.methods.get("h2o")


class Replaced(H2O):
    """Broken on purpose: becomes the full cache where the budget is large enough."""

    @classmethod
    def build(cls, knobs: Mapping[str, Any]) -> Method:
        return Method() if knobs["B"] >= 36 else super().build(knobs)


class Switches(H2O):
    """Broken on purpose: takes the fast kernel where it does not have to decide."""

    @property
    def needs_mass(self) -> bool:
        return self.B < 36

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        if mass is not None:
            super().observe(site, step, slot, q, mass)


class Skips(H2O):
    """Broken on purpose: does not observe where it does not have to decide."""

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        if self.B < 36:
            super().observe(site, step, slot, q, mass)


@pytest.mark.parametrize("cheat", [Replaced, Switches, Skips])
def test_a_short_cut_is_seen_though_its_tokens_are_right(cheat: type[Method]) -> None:
    cell = Cell(cheat, (), "native", "mha")
    ran, capture = at_neutral(cell)
    assert not differs_from_full(cell, ran)
    assert detours(cell, ran, capture)
