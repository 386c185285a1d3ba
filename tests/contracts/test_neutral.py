"""Neutral parameters equal the full cache bit for bit, on the method's own path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from torch import Tensor

from cachemark.cache.layout import Site, Step
from cachemark.cache.slot import Slot
from cachemark.contract.method import Method
from cachemark.kit import checks
from cachemark.methods.registry import METHODS

from .cells import Cell

# ------------------------------------------------------------------------------------------ short cuts that must be seen

H2O: Any = METHODS.get("h2o")


class Replaced(H2O):
    """Broken on purpose: becomes the full cache where the budget is large enough."""

    @classmethod
    def build(cls, parameters: Mapping[str, Any]) -> Method:
        return Method() if parameters["B"] >= 36 else super().build(parameters)


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
    assert not list(checks.neutral_is_full(cell))
    assert list(checks.neutral_is_no_special_case(cell))
