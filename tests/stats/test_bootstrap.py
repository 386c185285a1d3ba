"""Intervals: exact where they say so, and honest about how much they cover."""

from __future__ import annotations

import random

import pytest

from cachemark.stats import bootstrap
from cachemark.stats.bootstrap import mean_over_seeds, median_over_repeats, ratio_of_medians


def test_three_repeats_span_all_values_and_admit_how_little_they_cover() -> None:
    ends = ratio_of_medians([2.0, 2.2, 1.9], [1.0, 1.1, 1.3])
    assert ends.value == pytest.approx(2.0 / 1.1)
    assert (ends.low, ends.high) == (pytest.approx(1.9 / 1.3), pytest.approx(2.2 / 1.0))
    assert ends.confidence == pytest.approx(0.75**2)  # each median: 1 - 2 / 2^3
    assert ends.n == 3


@pytest.mark.parametrize(("n", "cut"), [(7, 0), (9, 0), (10, 1), (20, 4)])
def test_many_repeats_cut_extremes_and_still_cover_95_percent(n: int, cut: int) -> None:
    values = [float(k) for k in range(1, n + 1)]
    ends = ratio_of_medians(values, values)
    assert ends.low == pytest.approx(values[cut] / values[-1 - cut])
    assert ends.high == pytest.approx(values[-1 - cut] / values[cut])
    assert ends.confidence >= 0.95


def test_one_repeat_covers_nothing() -> None:
    ends = ratio_of_medians([3.0], [2.0])
    assert (ends.value, ends.low, ends.high, ends.confidence, ends.n) == (1.5, 1.5, 1.5, 0.0, 1)


@pytest.mark.parametrize("n", [3, 5, 8, 15])
def test_stated_coverage_holds_on_skewed_noise(n: int) -> None:
    stream, held, rounds = random.Random(5), 0, 1500
    stated = 0.0
    for _ in range(rounds):
        above, below = ([stream.lognormvariate(0.0, 0.8) for _ in range(n)] for _ in range(2))
        ends = ratio_of_medians(above, below)  # both true medians are 1
        held += ends.low <= 1.0 <= ends.high
        stated = ends.confidence
    assert held / rounds >= stated - 0.02


def test_bootstrap_is_repeatable_and_surrounds_the_mean() -> None:
    stream = random.Random(1)
    values = [stream.gauss(10, 2) for _ in range(64)]
    ends = mean_over_seeds(values)
    assert ends == mean_over_seeds(values)
    assert ends.value == pytest.approx(sum(values) / 64)
    assert ends.low < ends.value < ends.high
    assert (ends.high - ends.low) / 2 == pytest.approx(1.96 * 2 / 8, rel=0.25)  # the normal half-width at this n


def test_many_seeds_are_resampled_in_parts_that_are_not_kept_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = random.Random(2)
    named = {name: [float(stream.randrange(100)) for _ in range(128)] for name in range(3)}  # of 128 integers every mean is exact
    whole = bootstrap.means_over_seeds(named)
    bootstrap._shares.cache_clear()
    monkeypatch.setattr(bootstrap, "_KEPT", 64)
    assert bootstrap.means_over_seeds(named) == whole
    assert bootstrap._shares.cache_info().currsize == 0


def test_equal_seeds_have_no_spread_and_one_seed_no_interval() -> None:
    assert mean_over_seeds([0.5] * 8).low == mean_over_seeds([0.5] * 8).high == 0.5
    assert mean_over_seeds([0.5]).confidence == 0.0


@pytest.mark.parametrize("n", [1, 2, 3, 6, 9, 10, 16])
def test_an_interval_of_a_median_covers_what_counting_says(n: int) -> None:
    """Every value lies above or below the median, each with one half: whether the ends hold it is counted over all ways to lie."""
    ends = median_over_repeats([float(k) for k in range(n, 0, -1)])
    below = int(ends.low)  # the median must be above so many values, and not above this many from the other end
    held = sum(below <= bin(ways).count("1") <= n - below for ways in range(2**n)) / 2**n
    assert ends.value == (n + 1) / 2
    assert ends.high == n + 1 - ends.low
    assert ends.confidence == pytest.approx(held if n > 1 else 0.0)
    assert ends.confidence >= 0.95 or below == 1
