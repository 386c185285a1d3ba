"""Intervals of ratios of medians over repeats and of means over seeds.

The interval of a mean depends on the range of one seed's value (:attr:`cachemark.core.units.Metric.within`), because a few seeds do not
show rare values:

- **bounded** on both sides: Gaffke's bounds (:mod:`.gaffke`); Clopper and Pearson's if all values are at the ends.
- **nonnegative** without an upper end: the hull of the interval of a lognormal mean (Zou, Taleban and Huo 2009) and of a bootstrap-t.
- **unbounded**: the hull of Student's interval and of a bootstrap-t.

Values have no interval if no method kept at least 93 % coverage in simulation; see the table in docs/results/validation.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TypeVar

import numpy as np
import scipy

from ..core.formatting import metric_value
from .gaffke import weights
from .sign_flip import Floats

Key = TypeVar("Key", bound=Hashable)
Range = tuple[float, float]
Ends = tuple[Floats, Floats]
ANY: Range = (-math.inf, math.inf)
LEVEL = 0.95
PROCESS_BIAS = 0.02  # standard deviation of the bias of a process, common to all its times of a case
FEWEST = 8  # with fewer seeds, only bounded quantities have an interval
OPEN = 100.0  # an upper end above this multiple of the mean is uninformative, and is not stated
_TAIL = (1 - LEVEL) / 2
_Z = statistics.NormalDist().inv_cdf(1 - _TAIL)
_RESAMPLES = 4000
_AT_ONCE, _AT_ONCE_DRAWN = 64, 256  # rows of a product, whose resamples take 2 MB, and of one that draws them again
_KEPT = 1024  # most values whose resamples are all kept: 32 MB
_PART = 200  # resamples at a time of more values: 80 MB at 50,000


@dataclass(frozen=True)
class Interval:
    """A value with its interval.

    ``confidence`` is between 0 and 1, and ``n`` the smaller number of raw values. Without an interval, ``confidence`` is 0 and both ends
    equal the value."""

    value: float
    low: float
    high: float
    confidence: float
    n: int

    @property
    def stated(self) -> bool:
        """True if there is an interval."""
        return self.confidence > 0

    def text(self, name: str) -> str:
        """Return it as a value of the metric ``name`` with the ends: ``5.400 (4.900–5.900)``."""
        value, low, high = (metric_value(end, name) for end in (self.value, self.low, self.high))
        return f"{value} ({low}–{high})" if self.stated else value


# -- times ---------------------------------------------------------------------------------------------------------------
@cache
def _ranks(n: int, level: float) -> tuple[int, float]:
    """Return how many values to cut at each end, and the coverage of the median by the rest."""
    cuts = np.arange(n // 2 or 1)
    covered = 1 - 2 * scipy.special.betaincc(cuts + 1, n - cuts, 0.5)  # with binomial probability
    cut = max(int((covered >= level).sum()) - 1, 0)
    return cut, max(float(covered[cut]), 0.0)


def median_over_repeats(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the median with an interval between two order statistics.

    Few repeats give less confidence than ``level``. For times the interval covers the median of this process only."""
    ordered = sorted(values)
    cut, sure = _ranks(len(ordered), level)
    return Interval(statistics.median(ordered), ordered[cut], ordered[-1 - cut], sure, len(ordered))


def ratio_of_medians(above: Sequence[float], below: Sequence[float], process_bias: float = PROCESS_BIAS) -> Interval:
    """Return ``median(above) / median(below)`` with an interval that is valid across processes.

    Both are positive times. Each median is between two of its own order statistics with a known probability, so the ratio is between
    the ratios of their far ends with at least the product of both probabilities, which is below 95 % for few repeats. The bias of a
    process is invisible within it, so both ends are moved out by the 95 % bound of the difference of two processes with the standard
    deviation ``process_bias``. ``confidence`` is the product of all three."""
    a, b = sorted(above), sorted(below)
    cut_a, sure_a = _ranks(len(a), math.sqrt(LEVEL))
    cut_b, sure_b = _ranks(len(b), math.sqrt(LEVEL))
    value, apart = statistics.median(a) / statistics.median(b), math.exp(_Z * math.sqrt(2) * process_bias)
    sure = sure_a * sure_b * LEVEL
    if not sure:
        return Interval(value, value, value, 0.0, min(len(a), len(b)))
    return Interval(value, a[cut_a] / b[-1 - cut_b] / apart, a[-1 - cut_a] / b[cut_b] * apart, sure, min(len(a), len(b)))


# -- means ---------------------------------------------------------------------------------------------------------------
def mean_over_seeds(values: Sequence[float], within: Range = ANY) -> Interval:
    """Return the mean of one value per seed with its 95 % interval, if there is a valid one.

    ``within`` is the range of a value."""
    return means_over_seeds({"": values}, {"": within})[""]


def means_over_seeds(named: Mapping[Key, Sequence[float]], within: Mapping[Key, Range]) -> dict[Key, Interval]:
    """Return :func:`mean_over_seeds` of several metrics; those over equally many seeds share one product."""
    alike: dict[tuple[int, Range], list[Key]] = {}
    for name, values in named.items():
        alike.setdefault((len(values), within.get(name, ANY)), []).append(name)
    intervals: dict[Key, Interval] = {}
    for (n, limits), names in alike.items():
        rows = _AT_ONCE if n <= _KEPT else _AT_ONCE_DRAWN
        for begin in range(0, len(names), rows):
            part = names[begin : begin + rows]
            intervals.update(zip(part, _means(np.array([named[name] for name in part], dtype=np.float64), limits), strict=True))
    return {name: intervals[name] for name in named}


def mean_of_means(parts: Sequence[Interval]) -> Interval:
    """Return the mean of the means of disjoint groups of seeds with equal weights.

    The variance of each mean is recovered from its interval (MOVER; Zou and Donner, Statistics in Medicine 27, 2008). The result has an
    interval only if every group has one."""
    value, n = statistics.fmean(part.value for part in parts), sum(part.n for part in parts)
    if not all(part.stated for part in parts):
        return Interval(value, value, value, 0.0, n)
    below, above = (math.hypot(*(part.value - end for part, end in zip(parts, ends, strict=True))) / len(parts)
                    for ends in ([part.low for part in parts], [part.high for part in parts]))
    return Interval(value, value - below, value + above, min(part.confidence for part in parts), n)


def _means(data: Floats, within: Range) -> Iterable[Interval]:
    """Return one interval per row of ``data``, (values, seeds)."""
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


def _unbounded(data: Floats) -> Ends:
    """Return the hull of Student's interval, for nearly normal values, and of a bootstrap-t."""
    mean, n, (low, high) = data.mean(axis=1), data.shape[1], _bootstrap_t(data)
    reach = scipy.special.stdtrit(n - 1, 1 - _TAIL) * data.std(axis=1, ddof=1) / math.sqrt(n)
    return np.minimum(mean - reach, low), np.maximum(mean + reach, high)


def _bounded(data: Floats, least: float, most: float) -> Ends:
    """Return quantiles of the mean of the values and one more at either end, with random weights."""
    scaled = np.clip((data - least) / (most - least), 0, 1)
    low, high, n = np.empty(len(data)), np.empty(len(data)), data.shape[1]
    ends = ((scaled == 0) | (scaled == 1)).all(axis=1)
    hits = scaled[ends].sum(axis=1)
    low[ends] = np.nan_to_num(scipy.special.betaincinv(hits, n - hits + 1, _TAIL), nan=0)
    high[ends] = np.nan_to_num(scipy.special.betaincinv(hits + 1, n - hits, 1 - _TAIL), nan=1)
    if not ends.all():
        below, above = [], []
        for drawn in _resamples(weights, n):
            below.append(scaled[~ends] @ drawn[:-1])
            above.append(below[-1] + drawn[-1])
        low[~ends], high[~ends] = _quantile(np.hstack(below), _TAIL), _quantile(np.hstack(above), 1 - _TAIL)
    return least + low * (most - least), least + high * (most - least)


def _positive(data: Floats) -> Ends:
    """Return the hull of a lognormal interval and a bootstrap-t; neither covers everywhere."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        (low, high), (lowest, highest) = _lognormal(np.log(data)), _bootstrap_t(data)
        for k in np.flatnonzero((data == 0).any(axis=1)):
            low[k], high[k] = _with_zeros(data[k])
        return np.maximum(np.minimum(low, lowest), 0), np.maximum(high, highest)


def _with_zeros(row: Floats) -> tuple[float, float]:
    """Return the ends for the lognormal mean of the positive values times their fraction."""
    above = row[row > 0]
    if len(above) < 2:
        return math.nan, math.nan
    (low,), (high,) = _lognormal(np.log(above)[None, :])
    (least,), (most,) = _bounded((row > 0).astype(np.float64)[None, :], 0.0, 1.0)
    return low * least, high * most


def _lognormal(logs: Floats) -> Ends:
    """Return the interval of the mean from the exact intervals of a lognormal's parameters."""
    n, mean, half = logs.shape[1], logs.mean(axis=1), logs.var(axis=1, ddof=1) / 2
    wide = _Z**2 * 2 * half / n
    down, up = (half * abs((n - 1) / (2 * scipy.special.gammaincinv((n - 1) / 2, side)) - 1) for side in (1 - _TAIL, _TAIL))
    return np.exp(mean + half - np.sqrt(wide + down**2)), np.exp(mean + half + np.sqrt(wide + up**2))


def _bootstrap_t(data: Floats) -> Ends:
    """Return an interval from Studentized means of resamples of each row.

    Quantiles for 97.5 % are used: at 95 %, means with power-law tails were covered in 91 % of cases with 16 seeds."""
    n, mean, error = data.shape[1], data.mean(axis=1), data.std(axis=1, ddof=1) / math.sqrt(data.shape[1])
    ratios = []
    for counts in _resamples(_counts, n):
        drawn = data @ counts
        spread = np.maximum((data**2) @ counts - drawn**2, 0) / (n - 1)
        ratios.append(np.divide(drawn - mean[:, None], np.sqrt(spread), out=np.zeros_like(drawn), where=spread > 0))
    drawn = np.hstack(ratios)
    up, down = _quantile(drawn, 1 - _TAIL / 2), _quantile(drawn, _TAIL / 2)
    return mean - up * error, mean - down * error


def _quantile(data: Floats, at: float) -> Floats:
    """Return a quantile of each row, whose values are reordered.

    :func:`numpy.quantile` takes five times as long, since it looks for four ranks."""
    place = at * (data.shape[1] - 1)
    k = math.floor(place)
    data.partition(k, axis=1)
    below, above = data[:, k], data[:, k + 1 :].min(axis=1)
    return below + (above - below) * (place - k)


# -- resamples: always the same, since a legacy stream never changes; in parts if all of them would be gigabytes -------------------------
Draw = Callable[[np.random.RandomState, int, int], Floats]


def _resamples(draw: Draw, n: int) -> Iterable[Floats]:
    """Return ``_RESAMPLES`` columns for n values.

    All columns are kept at once, since multiplying is 30 times as fast as drawing again.
    """
    if n <= _KEPT:
        return (_all(draw, n),)
    stream = np.random.RandomState(0)
    return (draw(stream, n, _PART) for _ in range(0, _RESAMPLES, _PART))


@lru_cache(maxsize=4)
def _all(draw: Draw, n: int) -> Floats:
    return draw(np.random.RandomState(0), n, _RESAMPLES)


def _counts(stream: np.random.RandomState, n: int, resamples: int) -> Floats:
    """Return the fraction of each of n values in each of the next resamples, (n, resamples)."""
    picks = stream.randint(0, n, size=(resamples, n))
    counts = np.zeros((n, resamples))
    np.add.at(counts, (picks, np.arange(resamples)[:, None]), 1.0 / n)
    return counts
