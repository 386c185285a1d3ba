"""Intervals around the two kinds of figures of the report: a ratio of medians over repeats, a mean over seeds.

Neither assumes a distribution. The first is exact for independent repeats and says how much it covers, because three repeats
cannot carry 95 %; the second is a percentile bootstrap with a stream that is frozen, so that a report can be made again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TypeVar

import numpy as np

from .sign_flip import Floats

Key = TypeVar("Key", bound=Hashable)
LEVEL = 0.95
_RESAMPLES = 4000
_AT_ONCE = 256  # rows of a product: their resamples take 8 MB
_KEPT = 2048  # values up to which all their resamples are kept: 64 MB
_PART = 200  # resamples at a time of more values: 80 MB at 50,000


@dataclass(frozen=True)
class Interval:
    """A value, its lower and upper end, how sure (``confidence`` 0 to 1) and the smaller number of raw values behind it."""

    value: float
    low: float
    high: float
    confidence: float
    n: int


def _ranks(n: int, wanted: float) -> tuple[int, float]:
    """The number of values to cut at each end so that the rest covers the median with ``wanted`` or the most there is."""
    covered = [1 - 2 * tail for tail in accumulate(math.comb(n, k) * 0.5**n for k in range(n // 2 or 1))]
    cut = max(sum(share >= wanted for share in covered) - 1, 0)
    return cut, max(covered[cut], 0.0)


def median_over_repeats(values: Sequence[float]) -> Interval:
    """The median between two of its own order statistics, with what they cover; that is below 95 % where repeats are few."""
    ordered = sorted(values)
    cut, sure = _ranks(len(ordered), LEVEL)
    return Interval(statistics.median(ordered), ordered[cut], ordered[-1 - cut], sure, len(ordered))


def ratio_of_medians(above: Sequence[float], below: Sequence[float]) -> Interval:
    """``median(above) / median(below)`` with an interval from order statistics (all values positive).

    Each median lies between two of its own order statistics with a known probability, so the ratio lies between the ratios
    of their far ends with at least the product of both. With few repeats that product is below 95 %; it is then reported.
    """
    a, b = sorted(above), sorted(below)
    cut_a, sure_a = _ranks(len(a), math.sqrt(LEVEL))
    cut_b, sure_b = _ranks(len(b), math.sqrt(LEVEL))
    value = statistics.median(a) / statistics.median(b)
    return Interval(value, a[cut_a] / b[-1 - cut_b], a[-1 - cut_a] / b[cut_b], sure_a * sure_b, min(len(a), len(b)))


def mean_over_seeds(values: Sequence[float]) -> Interval:
    """The mean of one value per seed with a 95 % percentile bootstrap over seeds; a single seed has no interval."""
    return means_over_seeds({"": values})[""]


def means_over_seeds(named: Mapping[Key, Sequence[float]]) -> dict[Key, Interval]:
    """:func:`mean_over_seeds` of several figures, those over equally many seeds at once: a product of many rows is many times as fast."""
    alike: dict[int, list[Key]] = {}
    for name, values in named.items():
        alike.setdefault(len(values), []).append(name)
    found: dict[Key, Interval] = {}
    for names in alike.values():
        for begin in range(0, len(names), _AT_ONCE):
            part = names[begin : begin + _AT_ONCE]
            found.update(zip(part, _means(np.array([named[name] for name in part], dtype=np.float64)), strict=True))
    return {name: found[name] for name in named}


def _means(data: Floats) -> Iterator[Interval]:
    """One interval for each row of ``data``, (figures, seeds)."""
    n = data.shape[1]
    if n < 2:
        yield from (Interval(float(row[0]), float(row[0]), float(row[0]), 0.0, n) for row in data)
        return
    resampled = _resampled(data)
    place = (1 - LEVEL) / 2 * (_RESAMPLES - 1)  # of the percentile among the sorted means, between two of them
    k, part = int(place), place - int(place)
    resampled.sort(axis=1)  # quicker than to part them at four places
    low = resampled[:, k] + part * (resampled[:, k + 1] - resampled[:, k])
    high = resampled[:, -1 - k] - part * (resampled[:, -1 - k] - resampled[:, -2 - k])
    for row, mean, least, most in zip(data, data.mean(axis=1), low, high, strict=True):
        flat = row.min() == row.max()  # rounding alone would part its ends
        yield Interval(float(mean), float(mean if flat else least), float(mean if flat else most), LEVEL, n)


def _resampled(data: Floats) -> Floats:
    """The means of all resamples of each row of ``data``, (figures, seeds) -> (figures, resamples)."""
    n = data.shape[1]
    if n <= _KEPT:
        return data @ _shares(n)
    stream = np.random.RandomState(0)
    return np.hstack([data @ _drawn(stream, n, _PART) for _ in range(0, _RESAMPLES, _PART)])


@lru_cache(maxsize=4)
def _shares(n: int) -> Floats:
    """All resamples of n values at once: one matrix serves all means over n values, and a product with it is thirty times as fast as
    drawing anew."""
    return _drawn(np.random.RandomState(0), n, _RESAMPLES)  # a legacy stream never changes


def _drawn(stream: np.random.RandomState, n: int, resamples: int) -> Floats:
    """Counts of each of n values in each of the next resamples, over n: (n, resamples)."""
    picks = stream.randint(0, n, size=(resamples, n))
    counts = np.zeros((n, resamples))
    np.add.at(counts, (picks, np.arange(resamples)[:, None]), 1.0 / n)
    return counts
