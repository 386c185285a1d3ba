"""Paired placings: where each method stands, at one error rate over all pairs and rankings.

All methods of a ranking have values at the same seeds, so each pair of methods has one difference per seed. Both directions of every pair
are tested and corrected together (Holm 1979). A method's place is one more than the number of methods that are significantly better: the
upper end of a simultaneous confidence set of its rank (Mogstad, Romano, Shaikh and Wilhelm 2024).

- **bounded** values: Gaffke's test (:mod:`.gaffke`) that the mean difference is above 0. It needs no symmetry, so rare large losses count.
- **unbounded** values: the same test of the signs of the differences, which is the exact sign test. The better method is better at more
  seeds, though not necessarily in the mean.

``studies/placing_study.py`` counts wrong placings of twelve methods.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .gaffke import chances_at_most, chances_of_rows
from .non_inferiority import ALPHA, holm
from .sign_flip import Floats

Key = TypeVar("Key", bound=Hashable)
_DIGITS = 12  # of a difference: further ones are rounding


@dataclass(frozen=True)
class Ranking:
    """Values at common seeds, ``{method: (seeds,)}``, higher is better; ``reach`` bounds differences."""

    values: Mapping[str, Sequence[float]]
    reach: float = math.inf

    @property
    def seeds(self) -> int:
        return min(map(len, self.values.values()), default=0)


@dataclass(frozen=True)
class Placing:
    """Place of one method ``of`` so many.

    ``behind``: methods that are significantly better; ``ahead``: significantly worse ones; ``tied``: all others.
    """

    of: int
    behind: tuple[str, ...]
    ahead: tuple[str, ...]
    tied: tuple[str, ...]

    @property
    def place(self) -> int:
        return 1 + len(self.behind)


def placings(rankings: Mapping[Key, Ranking], alpha: float = ALPHA) -> dict[Key, dict[str, Placing]]:
    """Return the placing of every method of every ranking.

    With at least ``1 − alpha`` probability no ``behind`` and no ``ahead`` of any ranking is wrong."""
    pairs = [(key, better, worse, p) for key, ranking in rankings.items() for better, worse, p in _pairs(ranking)]
    adjusted = holm([p for *_, p in pairs] + [1.0] * len(pairs))  # the opposite directions, whose p-values are large
    above: dict[Key, set[tuple[str, str]]] = {key: set() for key in rankings}
    for (key, better, worse, _), p in zip(pairs, adjusted, strict=False):
        if p <= alpha:
            above[key].add((better, worse))
    return {key: {name: _placing(name, list(ranking.values), above[key]) for name in ranking.values} for key, ranking in rankings.items()}


def _placing(name: str, names: Sequence[str], above: set[tuple[str, str]]) -> Placing:
    behind, ahead = (tuple(o for o in names if pair(o) in above) for pair in (lambda o: (o, name), lambda o: (name, o)))
    return Placing(len(names), behind, ahead, tuple(o for o in names if o != name and o not in behind and o not in ahead))


def _pairs(ranking: Ranking) -> list[tuple[str, str, float]]:
    """Return each pair as (better, worse), with the p-value of "the better one is not better"."""
    names = list(combinations(ranking.values, 2))
    if not names or ranking.seeds < 2:
        return []
    apart = np.array([np.subtract(ranking.values[a], ranking.values[b]) for a, b in names], dtype=np.float64)
    p, first = chances_of_pairs(apart, ranking.reach)
    return [(a, b, float(each)) if up else (b, a, float(each)) for (a, b), each, up in zip(names, p, first, strict=True)]


def seeds_won(apart: Floats) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    """Return at how many seeds each row of differences is above 0, and at how many below."""
    exact = np.round(apart, _DIGITS)
    return (exact > 0).sum(axis=1), (exact < 0).sum(axis=1)


@cache
def sign_chance(won: int, lost: int, seeds: int) -> float:
    """Return the p-value of "not better" for a method that wins at more of so many seeds than it loses at."""
    return float(chances_at_most([-1.0, 0.0, 1.0], [[lost, seeds - won - lost, won]], 0.0, -1.0)[0])


def chances_of_pairs(apart: Floats, reach: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the p-value of each row of differences, (pairs, seeds), and whether the first is better.

    ``reach``: the largest possible size of a difference; infinite if there is none."""
    if math.isinf(reach):
        apart, reach = np.sign(np.round(apart, _DIGITS)), 1.0
    scaled = np.round(apart / reach, _DIGITS)
    first = scaled.mean(axis=1) >= 0
    return chances_of_rows(np.where(first[:, None], scaled, -scaled), 0.0, -1.0), first
