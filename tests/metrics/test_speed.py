"""Tokens per second of both halves, from the moments at which tokens were drawn."""

from __future__ import annotations

import pytest

from cachemark.metrics.speed import halves, watched


def test_halves_divide_the_tokens_of_the_whole_batch_by_each_halfs_own_time() -> None:
    assert halves({7: 2.0, 15: 10.0}, tokens=16, batch=3) == (8 * 3 / 2.0, 8 * 3 / 8.0)


def test_an_odd_number_of_tokens_leaves_the_longer_half_last() -> None:
    assert halves({1: 1.0, 4: 4.0}, tokens=5, batch=1) == (2.0, 1.0)


def test_halves_look_at_nothing_but_the_middle_and_the_end() -> None:
    assert halves({3: 0.1, 7: 2.0, 11: 9.9, 15: 10.0}, 16, 1) == halves({7: 2.0, 15: 10.0}, 16, 1)


@pytest.mark.parametrize(("tokens", "line", "expected"), [
    (16, 4, [3, 7, 11, 15]),
    (9, 3, [2, 3, 5, 8]),  # the half ends inside a line
    (10, 4, [3, 4, 7, 9]),  # the last line is not full
    (1, 1, [0]),
])  # fmt: skip
def test_watched_are_line_ends_the_middle_and_the_last(tokens: int, line: int, expected: list[int]) -> None:
    assert watched(tokens, line) == expected


@pytest.mark.parametrize(("tokens", "line"), [(16, 4), (9, 3), (10, 4), (576, 24)])
def test_what_is_watched_suffices_for_the_halves(tokens: int, line: int) -> None:
    first, last = halves({index: index + 1.0 for index in watched(tokens, line)}, tokens, 1)
    assert first == pytest.approx(1)
    assert last == pytest.approx(1)
