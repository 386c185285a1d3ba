"""Non-inferiority: tests of the claim that a loss is smaller than a margin, corrected over all claims."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .gaffke import chances_at_most, chances_of_rows
from .sign_flip import Floats

ALPHA = 0.05  # how often any claim of a report may be false
MOST = 10**6  # largest number of seeds that is reported


def p_non_inferior(gains: Sequence[Sequence[float]], margin: float, least: float) -> list[float]:
    """Return the p-value of "the mean loss is ``margin`` or more" of each method.

    ``gains`` are the gains of a method at each seed, at least ``least``."""
    chances = [1.0] * len(gains)
    for size in {len(own) for own in gains}:
        alike = [k for k, own in enumerate(gains) if len(own) == size]
        for k, p in zip(alike, chances_of_rows(np.array([gains[k] for k in alike]), -margin, least), strict=True):
            chances[k] = float(p)
    return chances


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted for all of them (Holm 1979).

    Claims with an adjusted value of at most ``ALPHA`` include a false one with at most that probability."""
    adjusted, highest = [1.0] * len(p), 0.0
    for k, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        highest = max(highest, min((len(p) - k) * p[place], 1.0))
        adjusted[place] = highest
    return adjusted


def least_seeds(margin: float, least: float, claims: int) -> int:
    """Return the number of seeds without loss that first show the strongest of so many ``claims``."""
    return math.ceil(math.log(ALPHA / claims) / math.log1p(margin / least))


def loss_that_shows(seeds: int, least: float, claims: int) -> float:
    """Return the smallest margin that so many seeds without loss show for the strongest of ``claims``."""
    return least * math.expm1(math.log(ALPHA / claims) / seeds)


def seeds_to_show(gains: Sequence[float] | Floats, margin: float, least: float, claims: int, most: int = MOST) -> int | None:
    """Estimate the number of seeds that would show non-inferiority if the gains stayed like these.

    It is tested as the strongest of ``claims``. None if the mean loses the margin, or for more than ``most`` seeds."""
    values, counts = np.unique(np.asarray(gains, dtype=np.float64), return_counts=True)
    if float(np.mean(gains)) <= -margin:
        return None

    def is_shown(n: int) -> bool:
        return bool(chances_at_most(values, counts[None, :] * (n / len(gains)), -margin, least)[0] <= ALPHA / claims)

    if most < MOST and not is_shown(most):
        return None
    low, high = 0, min(least_seeds(margin, least, claims), most)
    while not is_shown(high):
        low, high = high, 2 * high if most == MOST else min(2 * high, most)
        if high > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_shown(middle) else (middle, high)
    return high


def fewest_to_show(gains: Floats, margin: float, least: float, claims: int, most: int = MOST) -> int | None:
    """Return the smallest :func:`seeds_to_show` of several methods; ``gains`` is (methods, seeds)."""
    fewest, means = None, gains.mean(axis=1)
    left = gains[np.argsort(-means)][: (means > -margin).sum()]
    while len(left):
        if (needed := seeds_to_show(left[0], margin, least, claims, most)) is None:
            left = left[1:]
        else:  # one test tells which methods need fewer
            fewest, most = needed, needed - 1
            left = left[chances_of_rows(left, -margin, least, most / left.shape[1]) <= ALPHA / claims]
    return fewest
