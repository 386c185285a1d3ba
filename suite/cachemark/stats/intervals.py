"""Intervals around the two kinds of values of the report: a ratio of medians over repeats, a mean over seeds.

How the interval of a mean is found depends on the values that one seed can have, which is said by the metric
(:attr:`cachemark.core.units.Metric.within`), because a few seeds show nothing of what is rare:

- **bounded** on both sides: Gaffke's bounds (see :mod:`.gaffke`), Clopper and Pearson's where all values are at the ends.
- **from 0 on** without an upper end: the hull of the interval of a lognormal mean (Zou, Taleban and Huo 2009) and of a bootstrap-t.
- **unbounded**: Student's.

What could not keep at least 93 % in simulation has no interval: docs/results/validation.md has the table.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TypeVar

import numpy as np
from scipy.stats import beta, chi2, t

from .gaffke import weights
from .sign_flip import Floats

Key = TypeVar("Key", bound=Hashable)
Range = tuple[float, float]
Ends = tuple[Floats, Floats]
ANY: Range = (-math.inf, math.inf)
LEVEL = 0.95
PROCESS_BIAS = 0.02  # standard deviation of what a process adds to all times of a case that are measured in it
FEWEST = 8  # seeds below which only bounded quantities have an interval
OPEN = 100.0  # an upper end of so many times the mean says that the seeds leave the mean open, and is not stated
_TAIL = (1 - LEVEL) / 2
_Z = statistics.NormalDist().inv_cdf(1 - _TAIL)
_RESAMPLES = 4000
_AT_ONCE = 256  # rows of a product: their resamples take 8 MB
_KEPT = 2048  # values up to which all their resamples are kept: 64 MB
_PART = 200  # resamples at a time of more values: 80 MB at 50,000


@dataclass(frozen=True)
class Interval:
    """A value, its lower and upper end, how sure (``confidence`` 0 to 1) and the smaller number of raw values behind it. Where nothing is
    known of how sure, ``confidence`` is 0 and both ends are the value."""

    value: float
    low: float
    high: float
    confidence: float
    n: int

    @property
    def stated(self) -> bool:
        """True where there is an interval at all."""
        return self.confidence > 0


# -- times ---------------------------------------------------------------------------------------------------------------
def _ranks(n: int, level: float) -> tuple[int, float]:
    """The number of values to cut at each end so that the rest covers the median with ``level`` or the most there is."""
    covered = [1 - 2 * tail for tail in accumulate(math.comb(n, k) * 0.5**n for k in range(n // 2 or 1))]
    cut = max(sum(share >= level for share in covered) - 1, 0)
    return cut, max(covered[cut], 0.0)


def median_over_repeats(values: Sequence[float]) -> Interval:
    """The median between two of its own order statistics, with what they cover; that is below 95 % where repeats are few. Of times it is
    the median of this process alone."""
    ordered = sorted(values)
    cut, sure = _ranks(len(ordered), LEVEL)
    return Interval(statistics.median(ordered), ordered[cut], ordered[-1 - cut], sure, len(ordered))


def ratio_of_medians(above: Sequence[float], below: Sequence[float]) -> Interval:
    """``median(above) / median(below)``, of all times that either case would take in other processes too (all values positive).

    Each median lies between two of its own order statistics with a known probability, so the ratio lies between the ratios of their far
    ends with at least the product of both; repeats are few, and the product then below 95 %. What a process adds to all its times is not
    seen from within: both ends move out by what two processes of ``PROCESS_BIAS`` differ by in 95 % of cases, and ``confidence`` is the
    product of all three.
    """
    a, b = sorted(above), sorted(below)
    cut_a, sure_a = _ranks(len(a), math.sqrt(LEVEL))
    cut_b, sure_b = _ranks(len(b), math.sqrt(LEVEL))
    value, process_bias = statistics.median(a) / statistics.median(b), math.exp(_Z * math.sqrt(2) * PROCESS_BIAS)
    sure = sure_a * sure_b * LEVEL
    if not sure:
        return Interval(value, value, value, 0.0, min(len(a), len(b)))
    return Interval(value, a[cut_a] / b[-1 - cut_b] / process_bias, a[-1 - cut_a] / b[cut_b] * process_bias, sure, min(len(a), len(b)))


# -- means ---------------------------------------------------------------------------------------------------------------
def mean_over_seeds(values: Sequence[float], within: Range = ANY) -> Interval:
    """The mean of one value per seed with its 95 % interval, or without one where none would be true; ``within``: what a value can be."""
    return means_over_seeds({"": values}, {"": within})[""]


def means_over_seeds(named: Mapping[Key, Sequence[float]], within: Mapping[Key, Range]) -> dict[Key, Interval]:
    """:func:`mean_over_seeds` of several values, those over equally many seeds at once: a product of many rows is many times as fast."""
    alike: dict[tuple[int, Range], list[Key]] = {}
    for name, values in named.items():
        alike.setdefault((len(values), within.get(name, ANY)), []).append(name)
    intervals: dict[Key, Interval] = {}
    for (_, limits), names in alike.items():
        for begin in range(0, len(names), _AT_ONCE):
            part = names[begin : begin + _AT_ONCE]
            intervals.update(zip(part, _means(np.array([named[name] for name in part], dtype=np.float64), limits), strict=True))
    return {name: intervals[name] for name in named}


def mean_of_means(parts: Sequence[Interval]) -> Interval:
    """The mean of the means of disjoint groups of seeds, each group counting alike, with an interval that recovers the variance of each
    mean from the ends of its own (MOVER; Zou and Donner, Statistics in Medicine 27, 2008). Not stated where one of theirs is not."""
    value, n = statistics.fmean(part.value for part in parts), sum(part.n for part in parts)
    if not all(part.stated for part in parts):
        return Interval(value, value, value, 0.0, n)
    below, above = (math.hypot(*(part.value - end for part, end in zip(parts, ends, strict=True))) / len(parts)
                    for ends in ([part.low for part in parts], [part.high for part in parts]))
    return Interval(value, value - below, value + above, min(part.confidence for part in parts), n)


def _means(data: Floats, within: Range) -> Iterable[Interval]:
    """One interval for each row of ``data``, (values, seeds)."""
    n, mean = data.shape[1], data.mean(axis=1)
    least, most = within
    if n > 1 and math.isfinite(least) and math.isfinite(most):
        (low, high), valid = _bounded(data, least, most), np.isfinite(mean)
    elif n >= FEWEST:
        low, high = _positive(data) if least == 0 else _unbounded(data)
        valid = np.isfinite(low) & np.isfinite(high) & (high > low)
        if least == 0:
            valid &= ((data > 0).sum(axis=1) >= FEWEST) & (data.max(axis=1) > data.min(axis=1)) & (high <= OPEN * mean)
    else:
        low, high, valid = mean, mean, np.zeros(len(data), dtype=bool)
    return [Interval(float(m), float(a), float(b), LEVEL, n) if sure else Interval(float(m), float(m), float(m), 0.0, n)
            for m, a, b, sure in zip(mean, np.minimum(low, mean), np.maximum(high, mean), valid, strict=True)]


def _student(data: Floats) -> Ends:
    mean, n = data.mean(axis=1), data.shape[1]
    reach = t.ppf(1 - _TAIL, n - 1) * data.std(axis=1, ddof=1) / math.sqrt(n)
    return mean - reach, mean + reach


def _unbounded(data: Floats) -> Ends:
    """The hull of two intervals: Student's is right where values are nearly normal, and the other where few of them make the mean."""
    (low, high), (lowest, highest) = _student(data), _bootstrap_t(data)
    return np.minimum(low, lowest), np.maximum(high, highest)


def _bounded(data: Floats, least: float, most: float) -> Ends:
    """The mean of the values and of one more at either end of their range, all weights being equally likely: see :mod:`.gaffke`."""
    scaled = np.clip((data - least) / (most - least), 0, 1)
    low, high, n = np.empty(len(data)), np.empty(len(data)), data.shape[1]
    ends = ((scaled == 0) | (scaled == 1)).all(axis=1)
    hits = scaled[ends].sum(axis=1)
    low[ends] = np.nan_to_num(beta.ppf(_TAIL, hits, n - hits + 1), nan=0)
    high[ends] = np.nan_to_num(beta.ppf(1 - _TAIL, hits + 1, n - hits), nan=1)
    if not ends.all():
        below, above = [], []
        for weights in _weights(n):
            below.append(scaled[~ends] @ weights[:-1])
            above.append(below[-1] + weights[-1])
        low[~ends], high[~ends] = (np.quantile(np.hstack(sums), at, axis=1) for sums, at in ((below, _TAIL), (above, 1 - _TAIL)))
    return least + low * (most - least), least + high * (most - least)


def _positive(data: Floats) -> Ends:
    """The hull of two intervals: one is right where logarithms are normal, and the other where sums nearly are; neither is everywhere."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        (low, high), (lowest, highest) = _lognormal(np.log(data)), _bootstrap_t(data)
        for k in np.flatnonzero((data == 0).any(axis=1)):
            low[k], high[k] = _with_zeros(data[k])
        return np.maximum(np.minimum(low, lowest), 0), np.maximum(high, highest)


def _with_zeros(row: Floats) -> tuple[float, float]:
    """The mean of what lies above 0, as a lognormal's, times the share of it: the ends of both together."""
    above = row[row > 0]
    if len(above) < 2:
        return math.nan, math.nan
    (low,), (high,) = _lognormal(np.log(above)[None, :])
    (least,), (most,) = _bounded((row > 0).astype(np.float64)[None, :], 0.0, 1.0)
    return low * least, high * most


def _lognormal(logs: Floats) -> Ends:
    """The mean of a lognormal, from the exact intervals of the mean and of the variance of its logarithms (Zou, Taleban, Huo 2009)."""
    n, mean, half = logs.shape[1], logs.mean(axis=1), logs.var(axis=1, ddof=1) / 2
    wide = _Z**2 * 2 * half / n
    down, up = (half * abs((n - 1) / chi2.ppf(side, n - 1) - 1) for side in (1 - _TAIL, _TAIL))
    return np.exp(mean + half - np.sqrt(wide + down**2)), np.exp(mean + half + np.sqrt(wide + up**2))


def _bootstrap_t(data: Floats) -> Ends:
    """Studentised means of resamples of each row: their quantiles stand for those of Student's t. They are those of 97.5 %: at 95 %
    means of values whose tails fall like a power were held in 91 % at 16 seeds."""
    n, mean, error = data.shape[1], data.mean(axis=1), data.std(axis=1, ddof=1) / math.sqrt(data.shape[1])
    ratios = []
    for counts in _counts(n):
        drawn = data @ counts
        spread = np.maximum((data**2) @ counts - drawn**2, 0) / (n - 1)
        ratios.append(np.divide(drawn - mean[:, None], np.sqrt(spread), out=np.zeros_like(drawn), where=spread > 0))
    up, down = np.quantile(np.hstack(ratios), (1 - _TAIL / 2, _TAIL / 2), axis=1)
    return mean - up * error, mean - down * error


# -- resamples: the same ever after, since a legacy stream never changes; in parts where all of them would be gigabytes ------------------
def _weights(n: int) -> Iterable[Floats]:
    if n <= _KEPT:
        return (_all_weights(n),)
    stream = np.random.RandomState(0)
    return (weights(stream, n, _PART) for _ in range(0, _RESAMPLES, _PART))


def _counts(n: int) -> Iterable[Floats]:
    if n <= _KEPT:
        return (_all_counts(n),)
    stream = np.random.RandomState(0)
    return (_drawn(stream, n, _PART) for _ in range(0, _RESAMPLES, _PART))


@lru_cache(maxsize=4)
def _all_weights(n: int) -> Floats:
    return weights(np.random.RandomState(0), n, _RESAMPLES)


@lru_cache(maxsize=4)
def _all_counts(n: int) -> Floats:
    """All resamples of n values at once: one matrix serves all means over n values, and a product with it is thirty times as fast as
    drawing anew."""
    return _drawn(np.random.RandomState(0), n, _RESAMPLES)


def _drawn(stream: np.random.RandomState, n: int, resamples: int) -> Floats:
    """Counts of each of n values in each of the next resamples, over n: (n, resamples)."""
    picks = stream.randint(0, n, size=(resamples, n))
    counts = np.zeros((n, resamples))
    np.add.at(counts, (picks, np.arange(resamples)[:, None]), 1.0 / n)
    return counts
