"""The lowest scores go; of equal scores the older entry first, wherever it lies."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cachemark.methods.base.evicting import lowest


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
