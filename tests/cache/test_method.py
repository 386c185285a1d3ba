"""The default method, its parameters, and the budget of an evicting one."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch

from cachemark.cache.arena import Memory
from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Layout, Site, Step
from cachemark.contract.method import Method
from cachemark.core.errors import BadParameter, UnknownName
from cachemark.kit.driver import RasterFeed as Feed
from cachemark.kit.driver import drive, layout_of
from cachemark.methods.base.evicting import Evicting, ring, table, visual_budget


@dataclass
class Parameterbed(Method):
    """One parameter of each type."""

    name = "parameterbed"
    count: int = 3
    share: float = 0.5
    exact: bool = True
    mode: str = "plain"
    free: object = None


def test_an_unknown_parameter_names_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        Parameterbed.build({"counts": 4})
    assert str(caught.value) == "Unknown parameter of parameterbed 'counts'. Did you mean 'count'? Known: count, exact, free, mode, share."


@pytest.mark.parametrize(("parameter", "value", "kind"), [
    ("count", 2.0, "an int"), ("count", True, "an int"), ("count", "2", "an int"), ("count", None, "an int"), ("share", "0.5", "a float"),
    ("share", False, "a float"), ("exact", 1, "a bool"), ("mode", 3, "a str"),
])  # fmt: skip
def test_a_parameter_of_another_type_is_refused(parameter: str, value: object, kind: str) -> None:
    with pytest.raises(BadParameter) as caught:
        Parameterbed.build({parameter: value})
    assert str(caught.value) == f"parameterbed: {parameter} = {value!r} is not {kind}. Use type {kind.split()[1]}."


@pytest.mark.parametrize(("budget", "lines", "expected"), [
    (Fraction(1), 6, 36), (Fraction(1, 2), 6, 18), (Fraction(1, 3), 6, 12), (Fraction(1, 6), 6, 12), (Fraction(1, 100), 6, 12),
    (Fraction(1, 4), 24, 36), (Fraction(1, 8), 24, 18),
])  # fmt: skip
def test_a_budget_is_whole_lines_and_two_at_least(budget: Fraction, lines: int, expected: int) -> None:
    assert visual_budget(budget, layout_of(lines=lines, line=6)) == expected
    assert Evicting.parameters_for(budget, layout_of(lines=lines, line=6)) == {"B": expected}


@dataclass
class Edged(Evicting):
    """Notes when it is asked to evict."""

    evict_after = "line"

    def evict(self, step: Step, slots: SlotBank) -> None:
        self.asked = [*getattr(self, "asked", []), step.index]


def test_evict_is_called_at_the_edge_alone() -> None:
    layout = layout_of(lines=3, line=4)
    method = Edged(B=100)
    drive(method, layout, Feed(layout))
    assert method.asked == [4, 8]


def test_state_of_a_method_is_counted_and_moves() -> None:
    layout: Layout = layout_of(heads=4, kv_heads=2, head_dim=8)
    memory = Memory()
    bank = SlotBank(layout, (Site("decoder", 0), Site("decoder", 1)), 5, memory)
    before = memory.nbytes("state")
    queries, mass = ring(memory, bank, 7), table(memory, bank, "mass")
    assert queries.shape == (2, 2, 4, 7, 8)
    assert mass.shape == (2, 2, 2, 5)
    assert mass.dtype == torch.float32
    assert memory.nbytes("state") - before == queries.nbytes + mass.nbytes
    for slot in bank.slots:
        slot.live = [4]
    mass += torch.arange(5)
    bank.evict(torch.zeros(2, 2, 2, 1, dtype=torch.int64))
    assert mass[0, 0, 0].tolist() == [3, 1, 2, 0, 4]
