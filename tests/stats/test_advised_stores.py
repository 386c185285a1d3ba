"""Recommendations over simulated stores of known truth: how often a method that is truly worse is recommended, and the truly best found."""

from __future__ import annotations

import numpy as np
import pytest

from cachemark.analysis.answers import Candidate, select
from cachemark.stats.gaffke import chances_at_most
from cachemark.stats.intervals import ratio_of_medians
from cachemark.stats.non_inferiority import ALPHA, holm

STORES, METHODS, MARGIN, PROCESS_BIAS = 1000, 6, 0.05, 0.02
VALUES = np.array([-1.0, -0.5, 0.0, 0.5])  # gains of color consistency


def recommended(stream: np.random.Generator, losses: np.ndarray, gains: np.ndarray, seeds: int) -> list[int | None]:
    """The number of the method that each store recommends, None for the full cache, from noisy scores and times."""
    lost = losses.reshape(-1)
    chances = np.stack([lost * 0.6, lost * 0.9, 1 - 1.6 * lost, 0.1 * lost], axis=1)  # on average -lost
    counts = np.array([stream.multinomial(seeds, row) for row in chances])
    p = chances_at_most(VALUES, counts, -MARGIN, -1.0).reshape(losses.shape)
    found: list[int | None] = []
    for mine, speeds in zip(p, gains, strict=True):
        adjusted = holm(mine.tolist())
        full = 2.0 * np.exp(PROCESS_BIAS * stream.normal()) * (1 + 0.002 * stream.normal(size=10))
        candidates = []
        for k, speed in enumerate(speeds):
            times = 2.0 / speed * np.exp(PROCESS_BIAS * stream.normal()) * (1 + 0.002 * stream.normal(size=10))
            candidates.append(Candidate(str(k), ratio_of_medians(full.tolist(), times.tolist()), 0.5, adjusted[k] <= ALPHA))
        best, _ = select(candidates)
        found.append(int(best.key) if best else None)
    return found


@pytest.mark.parametrize("seeds", [64, 256, 2000])
def test_a_method_that_is_truly_worse_is_recommended_in_at_most_one_store_of_twenty(seeds: int) -> None:
    """The worst case: whatever is faster loses the margin exactly, and what loses it most is the fastest."""
    stream = np.random.default_rng(seeds)
    losses = MARGIN * stream.choice([1.0, 1.0, 1.2, 2.0], (STORES, METHODS))
    shown = recommended(stream, losses, 1 + 4 * losses, seeds)
    assert sum(found is not None for found in shown) <= 0.05 * STORES


def test_the_truly_best_is_found_where_the_data_can_tell() -> None:
    stream = np.random.default_rng(7)
    losses = stream.choice([0.0, 0.01, 0.15], (STORES, METHODS), p=[0.4, 0.3, 0.3])
    gains = stream.permuted(np.tile([0.9, 1.15, 1.3, 1.5, 1.75, 2.0], (STORES, 1)), axis=1)  # further apart than process bias can move them
    truth = [max((k for k in range(METHODS) if losses[s, k] < MARGIN and gains[s, k] > 1), key=lambda k: gains[s, k], default=None)
             for s in range(STORES)]
    shown = recommended(stream, losses, gains, 1000)
    assert sum(found == best for found, best in zip(shown, truth, strict=True)) >= 0.9 * STORES
    worse = sum(found is not None and losses[s, found] >= MARGIN for s, found in enumerate(shown))
    assert worse <= 0.05 * STORES
