"""The budget is kept at every step, and what is allocated is what was declared."""

from __future__ import annotations

import pytest

from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Step
from cachemark.contract.method import Method
from cachemark.kit import checks
from cachemark.kit.runner import Check
from cachemark.methods.streaming import Streaming

from .cells import Cell, cells, generate, halved, recorded

EVICTING = cells(evicting=True)


@pytest.mark.parametrize("cell", halved(EVICTING))
def test_the_live_prefix_holds_what_it_should(cell: Cell) -> None:
    for moment in recorded(cell).moments[1:]:
        contents = [tokens for heads in moment.contents.values() for tokens in heads]
        assert all((tokens == moment.step.first).any(-1).all() for tokens in contents), "a token has not survived its own pass"


class KeepsLess(Streaming):
    """Broken on purpose: keeps two entries less than it is told to."""

    def evict(self, step: Step, slots: SlotBank) -> None:
        super().evict(step, slots)
        if slots.live_visual == self.B:
            slots.evict_place(0, slots.live[0] - 3)
            slots.evict_place(0, slots.live[0] - 3)


class Declares(Streaming):
    """Broken on purpose: asks for more room than it needs."""

    def capacity(self, layout: object, site: object) -> int:
        return super().capacity(layout, site) + 4  # type: ignore[arg-type]


@pytest.mark.parametrize(("broken", "check"), [
    (KeepsLess, checks.budget_is_used), (Declares, checks.declared_is_used),
])  # fmt: skip
def test_another_budget_is_caught(broken: type[Streaming], check: Check) -> None:
    (finding,) = list(check(Cell(broken, (), "native", "mha")))[:1]
    assert finding.expected != finding.actual


def test_a_method_that_forgets_to_evict_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has nowhere to write: a slot holds its capacity and no more."""
    cell = next(cell for cell in EVICTING if cell.cls.name == "h2o")
    monkeypatch.setattr(SlotBank, "evict", lambda self, places: None)
    with pytest.raises(AssertionError, match="too small a capacity"):
        generate(cell, cell.tight())


def test_a_memory_serves_one_case() -> None:
    cell = EVICTING[0]
    memory = cell.memory()
    generate(cell, cell.tight(), memory=memory)
    with pytest.raises(ValueError, match="one Memory serves one case"):
        generate(cell, Method(), memory=memory)
