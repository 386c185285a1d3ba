"""Non-inferiority: the claim that a loss is smaller than a margin, corrected over all claims that are made together, and what it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .gaffke import chance_at_most, chances_at_most

ALPHA = 0.05  # how often any claim of a report may be false
MOST = 10**6  # seeds beyond which no number is named


def p_non_inferior(gains: Sequence[float], margin: float, least: float) -> float:
    """The p-value of "on average it loses ``margin`` or more", from the gain at each seed, none of which can be below ``least``."""
    return chance_at_most(gains, -margin, least)


def holm(p: Sequence[float]) -> list[float]:
    """p-values adjusted over all of them (Holm 1979): claims whose adjusted value is at most ``ALPHA`` hold any false one with at most that
    probability."""
    adjusted, highest = [1.0] * len(p), 0.0
    for k, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        highest = max(highest, min((len(p) - k) * p[place], 1.0))
        adjusted[place] = highest
    return adjusted


def least_seeds(margin: float, least: float, claims: int) -> int:
    """The number of seeds at which no loss at any of them would first show it, were it the strongest of so many ``claims``."""
    return math.ceil(math.log(ALPHA / claims) / math.log1p(margin / least))


def loss_that_shows(seeds: int, least: float, claims: int) -> float:
    """The smallest margin that so many seeds can show, were there no loss at any of them and it the strongest of so many ``claims``."""
    return least * math.expm1(math.log(ALPHA / claims) / seeds)


def seeds_to_show(gains: Sequence[float], margin: float, least: float, claims: int) -> int | None:
    """Estimate the number of seeds that would show non-inferiority if they went on like these.

    As the strongest of so many ``claims``; None where they lose the margin, or where it takes more than a million."""
    values, counts = np.unique(np.asarray(gains, dtype=np.float64), return_counts=True)
    if float(np.mean(gains)) <= -margin:
        return None

    def is_shown(n: int) -> bool:
        return bool(chances_at_most(values, counts[None, :] * (n / len(gains)), -margin, least)[0] <= ALPHA / claims)

    low, high = 0, least_seeds(margin, least, claims)
    while not is_shown(high):
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_shown(middle) else (middle, high)
    return high
