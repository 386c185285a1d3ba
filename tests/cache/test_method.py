"""The default method, its parameters, the budget of an evicting one, and what it evicts: the lowest scores, of equal ones the oldest."""

from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cachemark.cache.arena import Memory
from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Layout, Site, Step
from cachemark.contract.method import Method
from cachemark.core.errors import BadParameter, UnknownName
from cachemark.kit.driver import RasterFeed as Feed
from cachemark.kit.driver import drive, layout_of
from cachemark.methods.base.evicting import Evicting, lowest, ring, table, visual_budget


@dataclass
class Parameterbed(Method):
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


# -- the lowest scores ------------------------------------------------------------------------------------------------
@st.composite
def tables(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Few different scores, so that many tie, and ages in any order."""
    count = draw(st.integers(1, 12))
    scores = draw(st.lists(st.integers(-2, 2), min_size=count, max_size=count))
    return scores, draw(st.permutations(range(count)))


@given(tables(), st.data())
def test_ties_go_by_age(table: tuple[list[int], list[int]], data: st.DataObject) -> None:
    scores, ages = table
    count = data.draw(st.integers(1, len(scores)))
    places = lowest(torch.tensor(scores).float(), torch.tensor(ages, dtype=torch.int16), count)
    expected = sorted(range(len(scores)), key=lambda place: (scores[place], ages[place]))[:count]
    assert places.tolist() == expected


@pytest.mark.parametrize("count", [1, 2])
def test_heads_choose_for_themselves(count: int) -> None:
    draw = torch.Generator().manual_seed(0)
    score = torch.randint(0, 3, (2, 3, 4, 9), generator=draw).float()
    age = torch.rand(2, 3, 4, 9, generator=draw).argsort(-1).to(torch.int16)
    together = lowest(score, age, count)
    assert together.shape == (2, 3, 4, count)
    for site in range(2):
        for row in range(3):
            for head in range(4):
                assert torch.equal(together[site, row, head], lowest(score[site, row, head], age[site, row, head], count))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_both_zeros_are_one_number(count: int) -> None:
    age = torch.tensor([3, 1, 2, 0], dtype=torch.int16)
    assert lowest(torch.tensor([-0.0, 0.0, -0.0, 0.0]), age, count).tolist() == [3, 1, 2, 0][:count]


def test_small_and_large_numbers_keep_their_order() -> None:
    score = torch.tensor([3e38, 1e-45, -1e-45, -3e38, 0.0, 1e-38, -1.0, 1.0, float("inf")])
    assert lowest(score, torch.arange(9, dtype=torch.int16).flip(0), 9).tolist() == [3, 6, 2, 4, 1, 5, 7, 0, 8]
