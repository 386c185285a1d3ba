"""The minimum effect that lasting bias of processes requires, on populations whose bias is known."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy

from cachemark.stats.intervals import PROCESS_BIAS, ratio_of_medians
from cachemark.stats.process_bias import largest_plausible, process_bias, process_deviation

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


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("nights", [1, 4])
def test_unchanged_nights_rarely_reach_it_whatever_the_tails(shape: str, nights: int) -> None:
    stream, rounds, reached = np.random.default_rng(nights), 60 // nights, 0
    for _ in range(rounds):
        limit, sides = required(SHAPES[shape], nights, stream), SHAPES[shape](stream, (2, FAMILY))
        reached += bool((np.expm1(sides[1] - sides[0]) >= limit).any())
    assert reached / rounds <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / rounds)


def test_many_nights_of_normal_bias_require_little_more_than_it() -> None:
    exact = 3.5 * math.sqrt(2) * 0.01  # one of 200 normal values lies above in 1 of 20 nights
    limits = [required(SHAPES["normal"], 30, np.random.default_rng(seed)) for seed in range(5)]
    assert exact < float(np.median(limits)) < 1.7 * exact


def test_a_bias_that_all_configurations_of_a_night_share_is_one_sample_of_it() -> None:
    """One value decides a night, so the effect may be smaller than for 200, but few nights have shown little of it."""
    stream, rounds, limits = np.random.default_rng(0), 60, []
    for _ in range(rounds):
        limits.append(required(SHAPES["normal"], 3, stream, common=True))
    reached = [abs(math.expm1(side)) >= limit for side, limit in zip(math.sqrt(2) * stream.normal(0, 0.01, rounds), limits, strict=True)]
    assert sum(reached) / rounds <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / rounds)
    assert np.median(limits) < np.median([required(SHAPES["normal"], 3, stream) for _ in range(9)])


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("freedom", [3.0, 1000.0])
def test_many_values_bound_the_tails_under_any_noise_and_few_values_leave_them_heavy(freedom: float, noise: float) -> None:
    rate, stream = 1e-3, np.random.default_rng(1)
    values = 0.01 * scipy.stats.t.rvs(freedom, size=2000, random_state=stream) + stream.normal(0, noise, 2000)
    exact = 0.01 * float(scipy.stats.t.isf(rate, freedom))
    many, few = (largest_plausible(values[:count], np.full(count, noise), rate) for count in (2000, 16))
    assert 0.95 * exact < many < 1.6 * exact
    assert few > 1.5 * many or freedom == 3.0


def test_it_is_the_largest_of_a_second_implementation() -> None:
    """By SciPy's density and a fine sum, over a coarse grid: it may miss the largest by little, and by no more."""
    values, noise = np.array([0.01, -0.02, 0.004, 0.03, -0.006]), 0.004
    norm, t = scipy.stats.norm, scipy.stats.t
    bias, step = np.linspace(-0.06, 0.07, 6501, retstep=True)
    of_values = norm.pdf(values[:, None] - bias, scale=noise)
    known = {(freedom, scale): float(np.log((of_values * t.pdf(bias, freedom, scale=scale)).sum(axis=1) * step).sum())
             for freedom in (3.0, 10.0, 1000.0) for scale in np.geomspace(0.01, 0.08, 12)}
    best = max(known.values())
    largest = max(float(t.isf(1e-3, freedom)) * scale for (freedom, scale), likely in known.items() if best - likely <= 1.353)
    assert largest_plausible(values, np.full(5, noise), 1e-3) == pytest.approx(largest, rel=0.15)


@pytest.mark.parametrize("deviation", [0.005, 0.02, 0.04])
def test_the_bound_is_above_the_deviation_in_95_of_100_samples(deviation: float) -> None:
    stream = np.random.default_rng(1)
    bounds = [process_deviation(math.sqrt(2) * deviation * stream.normal(size=30)) for _ in range(2000)]
    assert 0.94 <= np.mean(np.array(bounds) >= deviation) <= 0.96
    assert np.median(bounds) < 1.35 * deviation


def covered(process_bias: float, assumed: float, cases: int = 4000) -> float:
    """The fraction of intervals from three repeats that hold the true ratio of 1."""
    stream = np.random.default_rng(2)
    inside = 0
    for _ in range(cases):
        above, below = (np.exp(process_bias * stream.normal() + 0.002 * stream.normal(size=3)) for _ in range(2))
        ends = ratio_of_medians(above.tolist(), below.tolist(), assumed)
        inside += ends.low <= 1 <= ends.high
    return inside / cases


def test_three_repeats_at_a_bias_of_4_percent_are_covered_by_the_shown_bias_and_not_by_the_assumed() -> None:
    pairs = math.sqrt(2) * 0.04 * np.random.default_rng(3).normal(size=40)
    assert covered(0.04, PROCESS_BIAS) < 0.75
    assert covered(0.04, process_deviation(pairs)) >= 0.95
