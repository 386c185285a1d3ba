"""Intervals and the least effect that lasting bias requires: exact where they say so, and honest about how much they cover."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import scipy

from cachemark.stats import intervals
from cachemark.stats.intervals import PROCESS_BIAS, mean_of_means, mean_over_seeds, means_over_seeds, median_over_repeats, ratio_of_medians
from cachemark.stats.process_bias import largest_plausible, process_bias, process_deviation

SHARE, POSITIVE = (0.0, 1.0), (0.0, math.inf)
APART = math.exp(1.959964 * math.sqrt(2) * PROCESS_BIAS)  # what two processes differ by in 95 of 100 cases


def test_few_repeats_span_all_values_and_many_cut_as_many_as_exact_counting_allows() -> None:
    ends = ratio_of_medians([2.0, 2.2, 1.9], [1.0, 1.1, 1.3])
    assert ends.value == pytest.approx(2.0 / 1.1)
    assert (ends.low, ends.high) == (pytest.approx(1.9 / 1.3 / APART), pytest.approx(2.2 / 1.0 * APART))
    assert (ends.confidence, ends.n) == (pytest.approx(0.75**2 * 0.95), 3)  # each median: 1 - 2 / 2^3
    alone = ratio_of_medians([3.0], [2.0])
    assert (alone.value, alone.low, alone.high, alone.confidence, alone.stated) == (1.5, 1.5, 1.5, 0.0, False)
    n = 2000
    ends = median_over_repeats([float(k) for k in range(n)])
    missed = [2 * sum(math.comb(n, below) for below in range(int(ends.low) + more + 1)) / 2**n for more in (0, 1)]
    assert (ends.high, ends.confidence) == (n - 1 - ends.low, pytest.approx(1 - missed[0]))
    assert missed[0] <= 0.05 < missed[1]
    assert ratio_of_medians([2.0] * n, [1.0] * n).stated
    for n, cut in ((7, 0), (9, 0), (10, 1), (20, 4)):
        values = [float(k) for k in range(1, n + 1)]
        ends = ratio_of_medians(values, values)
        assert (ends.low, ends.high) == pytest.approx((values[cut] / values[-1 - cut] / APART, values[-1 - cut] / values[cut] * APART))
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


def test_intervals_of_medians_and_of_yes_and_no_cover_what_counting_says() -> None:
    """Every value lies above or below the median, each with one half: whether the ends hold it is counted over all ways to lie."""
    for n in (1, 2, 3, 6, 9, 10, 12):
        ends = median_over_repeats([float(k) for k in range(n, 0, -1)])
        below = int(ends.low)  # the median must be above so many values, and not above this many from the other end
        coverage = sum(below <= bin(ways).count("1") <= n - below for ways in range(2**n)) / 2**n
        assert (ends.value, ends.high) == ((n + 1) / 2, n + 1 - ends.low)
        assert ends.confidence == pytest.approx(coverage if n > 1 else 0.0)
        assert ends.confidence >= 0.95 or below == 1
    for hits, n in ((0, 2), (1, 16), (8, 16), (64, 64), (3000, 3001)):
        ends = mean_over_seeds([1.0] * hits + [0.0] * (n - hits), SHARE)
        exact = scipy.stats.binomtest(hits, n).proportion_ci(0.95)
        assert (ends.low, ends.high) == (pytest.approx(exact.low), pytest.approx(exact.high))
        assert not mean_over_seeds([0.5], SHARE).stated
        assert not mean_over_seeds([math.nan] * 9, SHARE).stated


def test_bounds_belong_to_the_range_and_are_found_at_once_as_one_by_one() -> None:
    stream = random.Random(3)
    shares = [stream.betavariate(3, 2) for _ in range(32)]
    ends, wider = mean_over_seeds(shares, SHARE), mean_over_seeds(shares, (-1.0, 1.0))
    moved = mean_over_seeds([60 * share - 7 for share in shares], (-7.0, 53.0))
    assert (moved.low, moved.high, wider.high) == pytest.approx((60 * ends.low - 7, 60 * ends.high - 7, ends.high))
    assert wider.low < ends.low < ends.value < ends.high
    stream = np.random.default_rng(4)
    ranges = {"share": SHARE, "other": SHARE, "kl": POSITIVE, "clip": intervals.ANY}
    named = {name: list(stream.uniform(0.1, 0.9, 24)) for name in ranges}
    together = means_over_seeds(named, ranges)
    for name, values in named.items():
        alone = mean_over_seeds(values, ranges[name])
        assert (together[name].low, together[name].high) == pytest.approx((alone.low, alone.high))


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


def test_values_without_a_range_have_student_s_interval_at_least_and_few_that_differ_are_held() -> None:
    values = [float(k) for k in range(9)]
    ends, reach = mean_over_seeds(values), 2.306004 * 2.738613 / 3
    assert reach <= min(ends.high - ends.value, ends.value - ends.low) <= max(ends.high - ends.value, ends.value - ends.low) < 1.5 * reach
    assert not mean_over_seeds(values[:7]).stated
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


def test_ninety_three_of_a_hundred_intervals_hold_the_mean_and_the_mean_of_means() -> None:
    """A percentile bootstrap holds it in 28 to 92; the whole table is made by studies/claims_study.py."""
    for name in POPULATIONS:
        for n in (16, 64):
            draw, truth, within = POPULATIONS[name]
            rows = dict(enumerate(draw(np.random.default_rng(9), (400, n))))
            stated = [ends for ends in means_over_seeds(rows, dict.fromkeys(rows, within)).values() if ends.stated]
            assert len(stated) > 200
            assert sum(ends.low <= truth <= ends.high for ends in stated) / len(stated) >= 0.93
    for sizes in ((2,) * 6, (8,) * 6, (3, 5, 8, 13, 21, 34), (80, 99, 80, 94, 100, 100)):
        truth, stream, drawn = (0.95, 0.6, 0.4, 0.8, 0.1, 0.2), np.random.default_rng(0), 300
        shares = {(row, task): (stream.random(n) < p).astype(float).tolist()
                  for row in range(drawn) for task, (p, n) in enumerate(zip(truth, sizes, strict=True))}
        intervals_of = means_over_seeds(shares, dict.fromkeys(shares, SHARE))
        means = [mean_of_means([intervals_of[row, task] for task in range(len(sizes))]) for row in range(drawn)]
        assert np.mean([ends.low <= np.mean(truth) <= ends.high for ends in means]) >= 0.93
        assert not mean_of_means([mean_over_seeds([1.0, 0.0, 1.0], SHARE), mean_over_seeds([1.0], SHARE)]).stated


Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
FAMILY, EQUAL = 200, 8
SHAPES: dict[str, Draw] = {
    "normal": lambda stream, shape: stream.normal(0, 0.01, shape),
    "t of 3 degrees": lambda stream, shape: 0.01 / math.sqrt(3) * stream.standard_t(3, shape),
}


def required(draw: Draw, nights: int, stream: np.random.Generator, *, common: bool = False) -> float:
    """What six A/A pairs of 8 configurations a night require; ``common``: configurations of a night have the same bias."""
    bias = draw(stream, (2, nights, 1 if common else EQUAL)) * np.ones((2, nights, EQUAL))
    pairs = (bias[1] - bias[0]).reshape(-1, 1) + stream.normal(0, 0.002, (nights * EQUAL, 6))
    return process_bias(list(pairs), FAMILY, [(number // EQUAL, number % FAMILY) for number in range(len(pairs))])


def test_unchanged_nights_rarely_reach_it_and_many_require_little_more_than_normal_bias() -> None:
    for nights in (1, 4):
        for shape in SHAPES:
            stream, rounds, reached = np.random.default_rng(nights), 60 // nights, 0
            for _ in range(rounds):
                limit, sides = required(SHAPES[shape], nights, stream), SHAPES[shape](stream, (2, FAMILY))
                reached += bool((np.expm1(sides[1] - sides[0]) >= limit).any())
            assert reached / rounds <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / rounds)
    exact = 3.5 * math.sqrt(2) * 0.01  # one of 200 normal values lies above in 1 of 20 nights
    limits = [required(SHAPES["normal"], 30, np.random.default_rng(seed)) for seed in range(5)]
    assert exact < float(np.median(limits)) < 1.7 * exact
    stream, rounds, limits = np.random.default_rng(0), 60, []
    for _ in range(rounds):
        limits.append(required(SHAPES["normal"], 3, stream, common=True))
    reached = [abs(math.expm1(side)) >= limit for side, limit in zip(math.sqrt(2) * stream.normal(0, 0.01, rounds), limits, strict=True)]
    assert sum(reached) / rounds <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / rounds)
    assert np.median(limits) < np.median([required(SHAPES["normal"], 3, stream) for _ in range(9)])


def test_many_values_bound_the_tails_and_it_is_the_largest_of_a_second_implementation() -> None:
    for freedom in (3.0, 1000.0):
        for noise in (0.0, 0.01):
            rate, stream = 1e-3, np.random.default_rng(1)
            values = 0.01 * scipy.stats.t.rvs(freedom, size=2000, random_state=stream) + stream.normal(0, noise, 2000)
            exact = 0.01 * float(scipy.stats.t.isf(rate, freedom))
            many, few = (largest_plausible(values[:count], np.full(count, noise), rate) for count in (2000, 16))
            assert 0.95 * exact < many < 1.6 * exact
            assert few > 1.5 * many or freedom == 3.0
    values, noise = np.array([0.01, -0.02, 0.004, 0.03, -0.006]), 0.004
    norm, t = scipy.stats.norm, scipy.stats.t
    bias, step = np.linspace(-0.06, 0.07, 6501, retstep=True)
    of_values = norm.pdf(values[:, None] - bias, scale=noise)
    known = {(freedom, scale): float(np.log((of_values * t.pdf(bias, freedom, scale=scale)).sum(axis=1) * step).sum())
             for freedom in (3.0, 10.0, 1000.0) for scale in np.geomspace(0.01, 0.08, 12)}
    best = max(known.values())
    largest = max(float(t.isf(1e-3, freedom)) * scale for (freedom, scale), likely in known.items() if best - likely <= 1.353)
    assert largest_plausible(values, np.full(5, noise), 1e-3) == pytest.approx(largest, rel=0.15)


def test_the_bound_is_above_the_deviation_and_three_repeats_are_covered_by_it() -> None:
    ratios = math.sqrt(2) * np.random.default_rng(1).normal(size=(2000, 30))
    bounds = [process_deviation(row) for row in ratios]
    assert 0.94 <= np.mean(np.array(bounds) >= 1) <= 0.96
    assert np.median(bounds) < 1.35
    assert [process_deviation(deviation * ratios[0]) / bounds[0] for deviation in (0.005, 0.04)] == pytest.approx([0.005, 0.04])
    pairs = math.sqrt(2) * 0.04 * np.random.default_rng(3).normal(size=40)
    assert covered(0.04, PROCESS_BIAS) < 0.75
    assert covered(0.04, process_deviation(pairs)) >= 0.95


def covered(process_bias: float, assumed: float, cases: int = 4000) -> float:
    """The fraction of intervals from three repeats that hold the true ratio of 1."""
    stream = np.random.default_rng(2)
    inside = 0
    for _ in range(cases):
        above, below = (np.exp(process_bias * stream.normal() + 0.002 * stream.normal(size=3)) for _ in range(2))
        ends = ratio_of_medians(above.tolist(), below.tolist(), assumed)
        inside += ends.low <= 1 <= ends.high
    return inside / cases
