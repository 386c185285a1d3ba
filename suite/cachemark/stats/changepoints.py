"""Change points of a nightly series, and the changes that it cannot detect.

The series is the ratio to a frozen canary, an old version of the code that is measured with the new one every night, so that a slower
day cancels. A *baseline series* is a stretch of nights in one environment; nothing is compared across its ends. A change that the ratio
hides shows in the canary's own times.

- A **weekly cycle** is removed if it is significant: the difference of each weekday from the median of the surrounding week.
- **Changes of level** are located by the largest standardized rank CUSUM (Pettitt 1979, with the weights of James, James and Siegmund
  1987) and tested by the difference of the means on both sides over the deviation within them, with outliers clipped. Autocorrelation of
  neighboring nights looks like changes: the autocorrelation without the change, plus its standard error, widens that deviation by the root
  of (1 + r) / (1 - r). The p-value follows from the maximum of a Brownian bridge (Miller and Siegmund 1982). Both sides of a change are
  searched again; remaining changes must shift the median by at least the minimum effect. A segment has at least ``LEAST`` nights, so a
  single outlier is never a change.
- A change that a linear rise fits better than steps, by the Bayesian information criterion, is a **ramp**.
- A series whose rank correlation of neighboring nights exceeds ``MOST_ALIKE`` without the changes is *non-stationary*; its changes are
  reported and do not gate.
- A series **shows** steps from the smallest one that is detected within ``SOON`` nights with a probability of ``POWER``. If that is more
  than the minimum effect, the reader is warned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from ..core.errors import CachemarkError
from ..core.wording import percent
from .sign_flip import Floats

STEP, RAMP = "step", "ramp"
LEAST = 5  # nights of a segment
LEVEL_OF_LEVELS = 0.001  # of the test for a change of level, which is repeated every night
MOST_ALIKE = 0.7  # rank correlation of neighbouring nights
WEEK, WEEKS = 7, 4  # length of a cycle in nights, and the fewest cycles that can be tested
MOST_ODD = 3.0  # deviations from the level that a night counts with
SOON = 14  # nights after a change within which it must be detected
POWER = 0.9  # probability of detecting a step that counts as detectable
_MOST = 37.0  # deviations whose probability is still a float
_GRID = 80  # positions where a ramp may start and end


@dataclass(frozen=True)
class ChangePoint:
    """A change of kind ``step`` or ``ramp``.

    ``first``: the first changed night; ``last``: the last night of the ramp, else ``first``. ``size``: the relative change, positive if
    worse. ``gates``: whether it may fail a gate. ``p``: the p-value of this change alone."""

    kind: str
    first: int
    last: int
    size: float
    p: float
    gates: bool


@dataclass(frozen=True)
class BaselineSeries:
    """The changes between two changes of the environment, on nights ``first`` to ``last`` inclusive.

    ``alike``: the rank correlation of neighboring nights without the changes and the weekly cycle, NaN for too few nights. ``shows``: the
    smallest step, a fraction, that is detected within ``SOON`` nights with a probability of ``POWER``, or NaN."""

    first: int
    last: int
    changes: tuple[ChangePoint, ...]
    alike: float
    shows: float = math.nan

    @property
    def stationary(self) -> bool:
        """True if changes may gate."""
        return not self.alike > MOST_ALIKE

    @property
    def blind(self) -> str:
        """A sentence about changes that its nights cannot show."""
        return (f"its nights vary so much, or are so alike (correlation {self.alike:.2f}), that a step below {percent(self.shows)} may "
                f"not show within {SOON} nights")


def changes(
    nights: Sequence[float], environments: Sequence[Hashable], delta: float, days: Sequence[int] | None = None,
) -> tuple[BaselineSeries, ...]:
    """Find changes in nightly log ratios to the canary, NaN for missing nights.

    ``environments`` names the environment of each night; ``delta`` is the minimum effect, a fraction; ``days`` is the day number of each
    night, which determines its weekday (None: consecutive days). Nights count from 0. The result is deterministic."""
    values = np.asarray(nights, dtype=np.float64)
    dates = np.arange(len(environments)) if days is None else np.asarray(days, dtype=np.int64)
    if values.shape != (len(environments),) or np.isinf(values).any() or not 0 < delta < 1:
        raise CachemarkError(f"{values.size} nights, {len(environments)} environments and a minimum effect of {delta} are no history.",
                             remedy="Pass one finite log ratio (NaN: missing) and one name per night, and a share such as 0.02.")
    starts = [i for i in range(len(environments)) if i == 0 or environments[i] != environments[i - 1]]
    return tuple(_series(values, dates, a, b, math.log1p(delta)) for a, b in itertools.pairwise([*starts, len(environments)]))


def _series(values: Floats, days: NDArray[np.int64], start: int, stop: int, limit: float) -> BaselineSeries:
    nights = start + np.flatnonzero(~np.isnan(values[start:stop]))
    x = values[nights]
    if len(x) < 2 * LEAST:
        return BaselineSeries(start, stop - 1, (), math.nan)
    x = x - weekly(x, days[nights])
    changes, level = _levels(x, nights, limit)
    alike = _alike(x - level)
    numbered = (replace(c, first=int(nights[c.first]), last=int(nights[c.last]), gates=c.size > 0 and not alike > MOST_ALIKE)
                for c in sorted(changes, key=lambda c: c.first))
    return BaselineSeries(start, stop - 1, tuple(numbered), alike, _shows(x - level))


def weekly(x: Floats, days: NDArray[np.int64]) -> Floats:
    """Return the effect of each night's weekday, (n,); 0 without a significant cycle or enough weeks.

    Each night is compared with the median of the surrounding week, so steps do not disturb it."""
    week = days % WEEK
    kinds = [week == day for day in np.unique(week)]
    if len(x) < WEEK * WEEKS or len(kinds) < 2 or min(int(kind.sum()) for kind in kinds) < WEEKS - 1:
        return np.zeros(len(x))
    away = x - scipy.ndimage.median_filter(x, WEEK, mode="nearest")
    if np.ptp(away) == 0 or scipy.stats.kruskal(*(away[kind] for kind in kinds)).pvalue > LEVEL_OF_LEVELS:
        return np.zeros(len(x))
    owed = np.zeros(len(x))
    for kind in kinds:
        owed[kind] = np.median(away[kind])
    return owed - owed.mean()


# -- the test -----------------------------------------------------------------------------------------------------------
def rank_cusum(values: ArrayLike) -> tuple[int, float]:
    """Return the most likely change of level (the first value after it) and its strength.

    ``values``: at least ``2 * LEAST``. The strength is the largest distance of the cumulative rank sum from its expectation, over the
    shape of its standard deviation."""
    ranks = scipy.stats.rankdata(values)
    heights = _heights(ranks[None])[0]
    place = int(heights.argmax())
    return LEAST + place, float(heights[place])


def level_change(values: Floats) -> tuple[int, float]:
    """Return the most likely change of level, the first value after it, and its p-value."""
    n, place = len(values), rank_cusum(values)[0]
    level = _stairs(values, [place])
    residuals = values - level
    clipped = level + _clipped(residuals)
    before, after = clipped[:place], clipped[place:]
    rise = abs(float(after.mean() - before.mean()))
    within = math.sqrt(float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum()) / (n - 2))
    if not rise > 0 or not within > 0:
        return place, float(not rise > 0)
    height = rise / within / math.sqrt(n / (place * (n - place)))

    def p_value(widening: float) -> float:
        return _tail(float(standardised(height / math.sqrt(widening), n)), n)

    least = p_value(_widened(0.0, n))
    if least > LEVEL_OF_LEVELS:
        return place, least
    p = p_value(_widening(residuals))  # the rest of a ramp without a step looks correlated; but a ramp fits a wave better than a step does
    if p <= LEVEL_OF_LEVELS or p_value(_widened(0.0, n, 2)) > LEVEL_OF_LEVELS or (ramp := _ramp(values, np.arange(n), [place])) is None:
        return place, p
    return place, min(p, p_value(_widening(values - ramp[2], 2)))


def standardised(t: ArrayLike, n: int) -> Floats:
    """Return the normal deviate with the tail probability of t with n − 2 degrees of freedom, capped."""
    return np.minimum(-scipy.special.ndtri(scipy.special.stdtr(n - 2, -np.asarray(t, dtype=np.float64))), _MOST)


def _clipped(residuals: Floats) -> Floats:
    deviation = 1.4826 * float(np.median(np.abs(residuals)))
    return np.clip(residuals, -MOST_ODD * deviation, MOST_ODD * deviation) if deviation > 0 else residuals


def _widening(residuals: Floats, errors: int = 1) -> float:
    """Return the factor by which autocorrelation and ``errors`` increase the variance of sums."""
    return _widened(max(_alike(residuals), 0.0), len(residuals), errors)


def _widened(alike: float, n: int, errors: int = 1) -> float:
    alike = min(alike + errors / math.sqrt(n), 0.95)
    return (1 + alike) / (1 - alike)


def _tail(height: float, n: int) -> float:
    """Return the probability that a standardized bridge of n values reaches that height on either side."""
    if height <= 1:
        return 1.0
    density = math.exp(-height * height / 2) / math.sqrt(2 * math.pi)
    return min(1.0, density * ((height - 1 / height) * 2 * math.log((n - LEAST) / LEAST) + 4 / height))


@cache
def _significant(n: int) -> float:
    """Return the smallest height of a significant change among n values."""
    return float(scipy.optimize.brentq(lambda height: _tail(height, n) - LEVEL_OF_LEVELS, 1.5, 10.0))


def _shows(residuals: Floats) -> float:
    """Return the smallest step that is detected within ``SOON`` nights with probability ``POWER``."""
    n, after = len(residuals), min(SOON, len(residuals) // 2)
    spread = float(_clipped(residuals).std(ddof=1)) * math.sqrt(_widening(residuals))
    return math.expm1((_significant(n) + float(scipy.special.ndtri(POWER))) * spread * math.sqrt(n / (after * (n - after))))


def _heights(ranks: Floats) -> Floats:
    """Return the standardized CUSUM of rows of ranks. (m, n) -> (m, n − 2·LEAST + 1)."""
    n = ranks.shape[1]
    before = np.arange(LEAST, n - LEAST + 1)
    sums = np.cumsum(ranks - (n + 1) / 2, axis=1)[:, LEAST - 1 : n - LEAST]
    return np.abs(sums) / np.sqrt(before * (n - before) / n)


# -- changes of level ---------------------------------------------------------------------------------------------------
def _levels(x: Floats, nights: NDArray[np.intp], limit: float) -> tuple[list[ChangePoint], Floats]:
    """Return the steps and ramps of x, measured on these nights, and the level of each night."""
    splits = dict(_splits(x, 0, len(x))) if np.ptp(x) >= limit else {}
    splits = _moved(x, _without_small(x, splits, limit))
    level, changes = _stairs(x, sorted(splits)), []
    for group in _one_way(x, sorted(splits)):
        start = max((k for k in splits if k < group[0]), default=0)  # the changes on both sides of the group
        stop = min((k for k in splits if k > group[-1]), default=len(x))
        ramp = _ramp(x[start:stop], nights[start:stop], [place - start for place in group])
        p = min(splits[place] for place in group)
        if ramp is not None:
            first, last, fit = ramp
            level[start:stop] = fit
            changes.append(ChangePoint(RAMP, start + first, start + last, math.expm1(fit[-1] - fit[0]), p, False))
        else:
            changes += [ChangePoint(STEP, k, k, math.expm1(level[k] - level[k - 1]), splits[k], False) for k in group]
    return changes, level


def _splits(x: Floats, start: int, stop: int) -> Iterator[tuple[int, float]]:
    """Yield indices of significant changes between start and stop, with p-values, recursively.

    If the whole range shows none, three overlapping halves are tested, because a reverted rise hides itself."""
    for a, b in _windows(start, stop):
        place, p = level_change(x[a:b])
        if p <= LEVEL_OF_LEVELS:
            place += a
            yield place, p
            yield from _splits(x, start, place)
            yield from _splits(x, place, stop)
            return


def _windows(start: int, stop: int) -> Iterator[tuple[int, int]]:
    n, half = stop - start, (stop - start + 1) // 2
    if n >= 2 * LEAST:
        yield start, stop
    if half >= 4 * LEAST:
        yield from ((a, a + half) for a in (start, start + (n - half) // 2, stop - half))


def _moved(x: Floats, splits: dict[int, float]) -> dict[int, float]:
    """Return the splits, moved to where the nights on both sides are closest to their medians."""
    ends, moved = [0, *sorted(splits), len(x)], dict[int, float]()
    for before, place, after in zip(ends, ends[1:], ends[2:], strict=False):
        before = max(before, max(moved, default=0))
        away = {k: np.abs(x[before:after] - _stairs(x[before:after], [k - before])).sum() for k in range(before + LEAST, after - LEAST + 1)}
        moved[min(away, key=lambda k: away[k], default=place)] = splits[place]
    return moved


def _without_small(x: Floats, splits: dict[int, float], limit: float) -> dict[int, float]:
    """Return the splits that shift the median by at least ``limit``; the smallest is removed first."""
    while splits:
        level, places = _stairs(x, sorted(splits)), sorted(splits)
        shifts = {k: abs(level[k] - level[k - 1]) for k in places}
        smallest = min(shifts, key=lambda k: shifts[k])
        if shifts[smallest] >= limit:
            break
        splits = {k: p for k, p in splits.items() if k != smallest}
    return splits


def _stairs(x: Floats, places: Sequence[int]) -> Floats:
    """Return the median of the segment of each night."""
    return np.concatenate([np.full(len(part), np.median(part)) for part in np.split(x, places)])


def _one_way(x: Floats, places: Sequence[int]) -> Iterator[list[int]]:
    """Yield groups of neighboring splits whose shifts have one sign, which may be ramps."""
    level, group = _stairs(x, places), list[int]()
    for place in places:
        if group and (level[place] > level[place - 1]) != (level[group[-1]] > level[group[-1] - 1]):
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _ramp(x: Floats, nights: NDArray[np.intp], places: Sequence[int]) -> tuple[int, int, Floats] | None:
    """Return first and last value of a linear rise and the fit; None if steps fit better.

    The rise is linear in nights; some nights may be missing. Single outliers are smoothed before both fits, which are charged ln n per
    parameter."""
    smooth, n = scipy.ndimage.median_filter(x, 3, mode="nearest"), len(x)
    ends = np.unique(np.linspace(nights[0], nights[-1], min(nights[-1] - nights[0] + 1, _GRID)).astype(int))
    begin, end = (grid.ravel() for grid in np.meshgrid(ends, ends, indexing="ij"))
    begin, end = begin[end - begin >= LEAST], end[end - begin >= LEAST]
    rise = np.clip((nights - begin[:, None]) / (end - begin)[:, None], 0, 1)
    away = smooth - smooth.mean()
    weight = np.einsum("ij,ij->i", rise, rise) - rise.sum(axis=1) ** 2 / n
    slope = rise @ away / weight
    best = int((slope**2 * weight).argmax())  # the variation that a ramp explains
    fit = smooth.mean() + slope[best] * (rise[best] - rise[best].mean())
    error = float(((smooth - fit) ** 2).sum())
    stairs = np.concatenate([np.full(len(part), part.mean()) for part in np.split(smooth, places)])
    if _criterion(error, n, 4) >= _criterion(((smooth - stairs) ** 2).sum(), n, 1 + 2 * len(places)):
        return None
    first, last = np.searchsorted(nights, begin[best], side="right"), np.searchsorted(nights, end[best])
    return int(first), int(min(last, n - 1)), fit


def _criterion(error: float, n: int, numbers: int) -> float:
    return n * math.log(max(error, 1e-30)) + numbers * math.log(n)


def _alike(residuals: Floats) -> float:
    """Return the rank correlation of neighboring nights; 0 if all are equal."""
    before, after = scipy.stats.rankdata(residuals[:-1]), scipy.stats.rankdata(residuals[1:])
    return float(np.corrcoef(before, after)[0, 1]) if np.ptp(before) > 0 and np.ptp(after) > 0 else 0.0
