"""Nightly series: what is found and named, what is not, and that nothing is compared across baseline series."""

import math
from typing import Any

import numpy as np
import pytest

from cachemark.core.errors import CachemarkError
from cachemark.stats import changepoints as history
from cachemark.stats.changepoints import LEAST, LEVEL_OF_LEVELS, BaselineSeries, changes, rank_cusum

DELTA, SD, N = 0.02, 0.004, 60


def noise(n: int = N, seed: int = 0, sd: float = SD, alike: float = 0.0) -> np.ndarray:
    """Nights with the given deviation, each resembling the one before."""
    x = np.random.default_rng(seed).normal(0, 1, n)
    for i in range(1, n):
        x[i] = alike * x[i - 1] + math.sqrt(1 - alike**2) * x[i]
    return sd * x


def stepped(place: int = 36, shift: float = 0.04, seed: int = 0, n: int = N) -> np.ndarray:
    return noise(n, seed) + shift * (np.arange(n) >= place)


def only(values: np.ndarray, environments: list[Any] | None = None, delta: float = DELTA) -> BaselineSeries:
    (series,) = changes(values, environments or ["e"] * len(values), delta)
    return series


def test_the_statistic_is_the_standardised_sum_of_ranks_and_places_a_clean_step_exactly() -> None:
    x = np.random.default_rng(0).permutation(23).astype(float)
    centred = np.argsort(np.argsort(x)) + 1 - 12.0
    heights = {k: abs(centred[:k].sum()) / math.sqrt(k * (23 - k) / 23) for k in range(LEAST, 23 - LEAST + 1)}
    place, height = rank_cusum(x)
    assert height == pytest.approx(max(heights.values()))
    assert heights[place] == pytest.approx(height)
    for place in (5, 17, 30, 55):
        assert rank_cusum(stepped(place, 1.0))[0] == place
        assert rank_cusum(np.exp(stepped(place, 1.0)))[0] == place, "only the order of values counts"


def test_a_step_is_found_and_gates_where_it_is_worse_however_clear_it_is() -> None:
    for place, shift in ((36, 0.04), (20, 0.08), (50, 0.05), (36, -0.04)):
        for seed in range(3):
            series = only(stepped(place, shift, seed))
            (change,) = series.changes
            assert (change.kind, change.gates, series.stationary) == ("step", shift > 0, True)
            assert abs(change.first - place) <= 1
            assert (change.last, change.size) == (change.first, pytest.approx(math.expm1(shift), abs=0.006))
            assert change.p <= LEVEL_OF_LEVELS
    for n, sd in ((20, 1e-2), (60, 0.0), (365, 1e-3), (365, 1e-9)):
        (change,) = only(noise(n, sd=sd) + 0.3 * (np.arange(n) >= n // 2)).changes
        assert (change.first, change.gates) == (n // 2, True)


def test_a_ramp_is_named_a_ramp_also_a_steep_one_with_missing_nights_and_two_steps_are_none() -> None:
    t = np.arange(N)
    for seed in range(5):
        (change,) = only(noise(seed=seed) + 0.08 * np.clip((t - 20) / 20, 0, 1)).changes
        assert (change.kind, change.gates, abs(change.first - 20) <= 5, abs(change.last - 40) <= 5) == ("ramp", True, True, True)
        assert change.size == pytest.approx(math.expm1(0.08), abs=0.012)
    for seed in range(8):
        x = noise(seed=seed, sd=0.001) + 0.18 * np.clip((t - 35) / 16, 0, 1)
        x[np.random.default_rng(seed).permutation(N)[:9]] = math.nan
        (ramp,) = [c for c in only(x).changes if c.kind == "ramp"]
        assert (ramp.gates, abs(ramp.first - 36) <= 2, abs(ramp.last - 51) <= 2) == (True, True, True)
    for seed in range(5):
        steps = only(stepped(20, 0.05, seed) + stepped(40, 0.05, seed + 100)).changes
        assert [(c.kind, abs(c.first - place) <= 1) for c, place in zip(steps, (20, 40), strict=True)] == [("step", True)] * 2


def test_equal_nights_an_odd_one_and_small_shifts_are_nothing_and_nights_without_a_level_do_not_gate() -> None:
    assert only(np.zeros(30)) == BaselineSeries(0, 29, (), 0.0, 0.0)
    odd, small = noise(), stepped(shift=0.014)
    odd[36] += 0.5
    assert only(odd).changes == only(small).changes == ()
    assert only(small, delta=0.01).changes[0].kind == "step"
    segments = [only(noise(seed=seed, sd=0.02, alike=0.9)) for seed in range(30)]
    calm = [only(noise(seed=seed, sd=0.02)) for seed in range(30)]
    alarms = sum(any(c.gates for c in segment.changes) for segment in segments)
    assert sum(not segment.stationary for segment in segments) >= 20
    assert alarms <= 5 < sum(bool(segment.changes) for segment in segments)
    assert sum(not segment.stationary for segment in calm) <= 2


def test_too_few_nights_say_nothing_and_what_is_no_history_is_refused() -> None:
    assert not changes([], [], DELTA)
    for n in (1, 9):
        segment = only(stepped(5, 1.0)[:n])
        assert (segment.changes, math.isnan(segment.alike), segment.stationary) == ((), True, True)
    for nights, delta, words in (([0.1, 0.2], 0.02, "2 nights, 1 environments"), ([math.inf], 0.02, "no history"),
                                 ([0.1], 2.0, "minimum effect of 2.0")):
        with pytest.raises(CachemarkError, match=words):
            changes(nights, ["a"], delta)


def test_nothing_is_compared_across_environments_and_missing_nights_are_skipped() -> None:
    values = stepped(30, 0.5)
    assert only(values).changes[0].first == 30
    two = changes(values, ["torch 2.6"] * 30 + ["torch 2.7"] * 30, DELTA)
    assert [(e.first, e.last, e.changes) for e in two] == [(0, 29, ()), (30, 59, ())]
    back = changes(values, ["a"] * 20 + ["b"] * 20 + ["a"] * 20, DELTA)
    assert [(e.first, e.last) for e in back] == [(0, 19), (20, 39), (40, 59)], "an environment that returns is not the old series"
    values = stepped(36, 0.05)
    values[[3, 4, 20, 35, 50]] = math.nan
    (change,) = only(values).changes
    assert change.first in (36, 37)
    lacking = values.copy()
    lacking[:55] = math.nan
    assert only(lacking).changes == ()


def test_a_cycle_of_weekdays_is_taken_out_as_soon_as_four_weeks_show_it() -> None:
    for weeks in (3, 12):
        days = np.arange(7 * weeks)
        cycle = 0.02 * np.where(days % 7 >= 5, 1.0, -1.0)
        values = cycle + noise(len(days), sd=0.002) + 0.05 * (days >= 40)
        weekly = history.weekly(values, days)
        assert (np.corrcoef(weekly, cycle)[0, 1] > 0.95 if weeks >= history.WEEKS else not weekly.any())
        assert not history.weekly(values - cycle, days).any(), "a step is no cycle"
    days = np.flatnonzero(np.random.default_rng(7).random(240) > 0.3)
    cycle = 0.03 * np.where(days % 7 >= 5, 1.0, -1.0)
    values = cycle + noise(len(days), sd=0.003)
    assert np.corrcoef(history.weekly(values, days), cycle)[0, 1] > 0.95
    assert not history.weekly(values, np.arange(len(days))).any()
