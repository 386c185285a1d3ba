"""Intervals: exact where they say so, and honest about how much they cover."""

import math
import random

import numpy as np
import pytest
import scipy

from cachemark.stats import intervals
from cachemark.stats.intervals import PROCESS_BIAS, mean_of_means, mean_over_seeds, means_over_seeds, median_over_repeats, ratio_of_medians

SHARE, POSITIVE = (0.0, 1.0), (0.0, math.inf)
APART = math.exp(1.959964 * math.sqrt(2) * PROCESS_BIAS)  # what two processes differ by in 95 of 100 cases


def test_three_repeats_span_all_values_and_what_processes_differ_by_and_admit_how_little_they_cover() -> None:
    ends = ratio_of_medians([2.0, 2.2, 1.9], [1.0, 1.1, 1.3])
    assert ends.value == pytest.approx(2.0 / 1.1)
    assert (ends.low, ends.high) == (pytest.approx(1.9 / 1.3 / APART), pytest.approx(2.2 / 1.0 * APART))
    assert ends.confidence == pytest.approx(0.75**2 * 0.95)  # each median: 1 - 2 / 2^3
    assert ends.n == 3
    alone = ratio_of_medians([3.0], [2.0])
    assert (alone.value, alone.low, alone.high, alone.confidence, alone.stated) == (1.5, 1.5, 1.5, 0.0, False)


@pytest.mark.parametrize(("n", "cut"), [(7, 0), (9, 0), (10, 1), (20, 4)])
def test_many_repeats_cut_extremes_and_still_cover_95_percent_of_either(n: int, cut: int) -> None:
    values = [float(k) for k in range(1, n + 1)]
    ends = ratio_of_medians(values, values)
    assert ends.low == pytest.approx(values[cut] / values[-1 - cut] / APART)
    assert ends.high == pytest.approx(values[-1 - cut] / values[cut] * APART)
    assert ends.confidence >= 0.95**2


@pytest.mark.parametrize("process_bias", [0.0, PROCESS_BIAS])
@pytest.mark.parametrize("n", [3, 5, 8, 15])
def test_stated_coverage_holds_on_skewed_noise_and_on_biased_processes(n: int, process_bias: float) -> None:
    stream, covered, rounds = random.Random(5), 0, 1500
    stated = 0.0
    for _ in range(rounds):
        shifts = [stream.gauss(0, process_bias) for _ in range(2)]
        above, below = ([stream.lognormvariate(shift, 0.005) for _ in range(n)] for shift in shifts)
        ends = ratio_of_medians(above, below)  # both true medians are 1
        covered += ends.low <= 1.0 <= ends.high
        stated = ends.confidence
    assert covered / rounds >= stated - 0.02


@pytest.mark.parametrize("n", [1, 2, 3, 6, 9, 10, 16])
def test_an_interval_of_a_median_covers_what_counting_says(n: int) -> None:
    """Every value lies above or below the median, each with one half: whether the ends hold it is counted over all ways to lie."""
    ends = median_over_repeats([float(k) for k in range(n, 0, -1)])
    below = int(ends.low)  # the median must be above so many values, and not above this many from the other end
    coverage = sum(below <= bin(ways).count("1") <= n - below for ways in range(2**n)) / 2**n
    assert ends.value == (n + 1) / 2
    assert ends.high == n + 1 - ends.low
    assert ends.confidence == pytest.approx(coverage if n > 1 else 0.0)
    assert ends.confidence >= 0.95 or below == 1


def test_thousands_of_repeats_cut_as_many_as_exact_counting_allows() -> None:
    """From 1030 values on, the number of orders exceeds a float."""
    n = 2000
    ends = median_over_repeats([float(k) for k in range(n)])
    missed = [2 * sum(math.comb(n, below) for below in range(int(ends.low) + more + 1)) / 2**n for more in (0, 1)]
    assert ends.high == n - 1 - ends.low
    assert ends.confidence == pytest.approx(1 - missed[0])
    assert missed[0] <= 0.05 < missed[1]
    assert ratio_of_medians([2.0] * n, [1.0] * n).stated


@pytest.mark.parametrize(("hits", "n"), [(0, 2), (1, 16), (8, 16), (64, 64), (3000, 3001)])
def test_of_yes_and_no_it_is_the_exact_binomial_interval(hits: int, n: int) -> None:
    ends = mean_over_seeds([1.0] * hits + [0.0] * (n - hits), SHARE)
    exact = scipy.stats.binomtest(hits, n).proportion_ci(0.95)
    assert (ends.low, ends.high) == (pytest.approx(exact.low), pytest.approx(exact.high))
    assert not mean_over_seeds([0.5], SHARE).stated
    assert not mean_over_seeds([math.nan] * 9, SHARE).stated


def test_bounds_belong_to_the_range_of_the_values() -> None:
    stream = random.Random(3)
    shares = [stream.betavariate(3, 2) for _ in range(32)]
    ends, wider = mean_over_seeds(shares, SHARE), mean_over_seeds(shares, (-1.0, 1.0))
    moved = mean_over_seeds([60 * share - 7 for share in shares], (-7.0, 53.0))
    assert (moved.low, moved.high) == (pytest.approx(60 * ends.low - 7), pytest.approx(60 * ends.high - 7))
    assert wider.low < ends.low < ends.value < ends.high
    assert wider.high == pytest.approx(ends.high)


def test_figures_of_one_number_of_seeds_are_found_at_once_as_one_by_one() -> None:
    stream = np.random.default_rng(4)
    ranges = {"share": SHARE, "other": SHARE, "kl": POSITIVE, "clip": intervals.ANY}
    named = {name: list(stream.uniform(0.1, 0.9, 24)) for name in ranges}
    together = means_over_seeds(named, ranges)
    for name, values in named.items():
        alone = mean_over_seeds(values, ranges[name])
        assert (together[name].low, together[name].high) == (pytest.approx(alone.low), pytest.approx(alone.high))


def test_an_interval_above_zero_is_where_the_values_are_smooth_and_not_where_nobody_knows() -> None:
    stream = random.Random(1)
    smooth = [stream.lognormvariate(0, 0.5) for _ in range(64)]
    ends = mean_over_seeds(smooth, POSITIVE)
    assert ends.stated
    assert 0 < ends.low < ends.value < ends.high
    assert (ends.high - ends.low) / ends.value == pytest.approx(2 * 1.96 * 0.53 / 8, rel=0.3), "the normal width"
    assert ends.high - ends.value > ends.value - ends.low, "skewed as the values are"
    for silent in (smooth[:7], [0.0] * 57 + smooth[:7], [0.0] * 64, [0.5] * 64, [10.0**-k for k in range(64)]):
        unstated = mean_over_seeds(silent, POSITIVE)
        assert not unstated.stated
        assert unstated.low == unstated.high == unstated.value == pytest.approx(sum(silent) / len(silent))


def test_values_without_a_range_have_student_s_interval_at_least() -> None:
    values = [float(k) for k in range(9)]
    ends, reach = mean_over_seeds(values), 2.306004 * 2.738613 / 3
    assert reach <= min(ends.high - ends.value, ends.value - ends.low) <= max(ends.high - ends.value, ends.value - ends.low) < 1.5 * reach
    assert not mean_over_seeds(values[:7]).stated


def test_the_mean_of_differences_that_few_seeds_make_is_held() -> None:
    """One image in ten is spoilt: Student's interval holds the mean loss in 89 %."""
    stream = np.random.default_rng(77)
    draws = np.where(stream.random((600, 32)) < 0.1, stream.normal(-1.7, 0.5, (600, 32)), stream.normal(0, 0.05, (600, 32)))
    covered = [ends.low <= -0.17 <= ends.high for ends in (mean_over_seeds(row.tolist()) for row in draws)]
    assert np.mean(covered) >= 0.93


POPULATIONS = {  # name: a draw of (samples, seeds), the true mean, the range
    "legend, 2 % spoilt": (lambda s, at: np.where(s.random(at) < 0.02, 0.25, 1.0), 0.985, SHARE),
    "class right at 0.96": (lambda s, at: (s.random(at) < 0.96).astype(float), 0.96, SHARE),
    "shares near 0": (lambda s, at: s.beta(0.2, 9.8, at), 0.02, SHARE),
    "half zero, lognormal 1": (lambda s, at: np.where(s.random(at) < 0.5, 0.0, s.lognormal(-0.5, 1.0, at)), 0.5, POSITIVE),
    "lognormal 1.5": (lambda s, at: s.lognormal(-1.125, 1.5, at), 1.0, POSITIVE),
}


@pytest.mark.parametrize("n", [16, 64])
@pytest.mark.parametrize("name", POPULATIONS)
def test_ninety_three_of_a_hundred_intervals_hold_the_mean(name: str, n: int) -> None:
    """A percentile bootstrap holds it in 28 to 92; the whole table is made by studies/claims_study.py."""
    draw, truth, within = POPULATIONS[name]
    rows = dict(enumerate(draw(np.random.default_rng(9), (400, n))))
    stated = [ends for ends in means_over_seeds(rows, dict.fromkeys(rows, within)).values() if ends.stated]
    assert len(stated) > 200
    assert sum(ends.low <= truth <= ends.high for ends in stated) / len(stated) >= 0.93


@pytest.mark.parametrize("sizes", [(2,) * 6, (8,) * 6, (3, 5, 8, 13, 21, 34), (80, 99, 80, 94, 100, 100)], ids=str)
def test_the_interval_of_a_mean_of_means_holds_it(sizes: tuple[int, ...]) -> None:
    """Shares as of GenEval's six tasks, the last row with its numbers of prompts."""
    truth, stream, drawn = (0.95, 0.6, 0.4, 0.8, 0.1, 0.2), np.random.default_rng(0), 300
    shares = {(row, task): (stream.random(n) < p).astype(float).tolist()
              for row in range(drawn) for task, (p, n) in enumerate(zip(truth, sizes, strict=True))}
    intervals_of = means_over_seeds(shares, dict.fromkeys(shares, SHARE))
    means = [mean_of_means([intervals_of[row, task] for task in range(len(sizes))]) for row in range(drawn)]
    assert np.mean([ends.low <= np.mean(truth) <= ends.high for ends in means]) >= 0.93
    assert not mean_of_means([mean_over_seeds([1.0, 0.0, 1.0], SHARE), mean_over_seeds([1.0], SHARE)]).stated
