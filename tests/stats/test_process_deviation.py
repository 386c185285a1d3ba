"""The process-to-process deviation that A/A pairs show, and speedup intervals with it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cachemark.stats.intervals import PROCESS_BIAS, ratio_of_medians
from cachemark.stats.process_bias import process_deviation


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
