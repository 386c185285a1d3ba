"""Sign-flip tests of paired differences: exact if all signs can be enumerated, else by random draws.

If two sides are equal, each difference has a random sign. The p-value is the fraction of sign choices whose sum is at least the observed
one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..core.errors import CachemarkError

MOST_PAIRS = 40  # the exact test keeps 2^(n/2) sums
DRAWS = 19_999  # choices of signs where not all are tried: enough to find one changed value among a thousand
BLOCK = 2**20  # signs that are drawn at once
_ROUNDING = 1e-12  # differences of less are the same number: a change of units may do so much to the last digits

Floats = NDArray[np.float64]


def rows(ratios: ArrayLike) -> Floats:
    """Return log ratios as an array, (..., n). Raises CachemarkError for none or a non-finite number."""
    d = np.asarray(ratios, dtype=np.float64)
    if d.ndim == 0 or d.shape[-1] == 0 or not np.isfinite(d).all():
        raise CachemarkError("Log ratios must be finite numbers, at least one per configuration.", remedy="Make them with log_ratios.")
    return d


# -- exact ---------------------------------------------------------------------------------------------------------------
def sign_flip(ratios: ArrayLike) -> Floats:
    """Return the exact one-sided p-value that the mean is above 0. (..., n) -> (...); n ≤ ``MOST_PAIRS``.

    It is the fraction of the 2ⁿ sign choices whose mean is at least the observed one. A choice reaches it exactly if the values with a
    changed sign add up to 0 or less. These are counted from the subset sums of each half of the values, so the work grows with 2^(n/2).
    Sums that are equal up to rounding count as equal."""
    d = rows(ratios)
    if d.shape[-1] > MOST_PAIRS:
        raise CachemarkError(f"{d.shape[-1]} pairs are too many for the exact test.", remedy=f"Pass at most {MOST_PAIRS}.")
    flat = d.reshape(-1, d.shape[-1])
    return np.array([_flip(row) for row in flat] if d.shape[-1] > 8 else _flip_few(flat)).reshape(d.shape[:-1])


def _sums(d: Floats) -> Floats:
    """Return sums of all subsets of the last axis, (..., n) -> (..., 2^n)."""
    sums = np.zeros((*d.shape[:-1], 1))
    for column in range(d.shape[-1]):
        sums = np.concatenate((sums, sums + d[..., column : column + 1]), axis=-1)
    return sums


def _slack(d: Floats) -> Floats:
    return _ROUNDING * (1 + np.abs(d).sum(axis=-1))


def _flip_few(d: Floats) -> Floats:
    return (_sums(d) <= _slack(d)[..., None]).mean(axis=-1)


def _flip(d: Floats) -> float:
    first_half, second_half = _sums(d[: len(d) // 2]), np.sort(_sums(d[len(d) // 2 :]))
    return float(np.searchsorted(second_half, _slack(d) - first_half, side="right").sum()) / 2.0 ** len(d)


# -- by draws ------------------------------------------------------------------------------------------------------------
def sign_flips(many: Sequence[Floats]) -> list[tuple[float, float]]:
    """Return one-sided p-values that the mean of each sample, (n,), is above 0, and below 0.

    Up to ``MOST_PAIRS`` nonzero values are tested exactly, more with ``DRAWS`` from a frozen stream, which include the observed choice so
    that p is never 0 (Phipson and Smyth 2010). Differences of 0 have no sign and are ignored. Samples of one size share the draws."""
    signed = [d[d != 0] for d in many]
    p_values = {i: (float(sign_flip(d)), float(sign_flip(-d))) if len(d) else (1.0, 1.0)
                for i, d in enumerate(signed) if len(d) <= MOST_PAIRS}
    groups: dict[int, list[int]] = {}
    for i in (i for i in range(len(signed)) if i not in p_values):
        groups.setdefault(len(signed[i]), []).append(i)
    for group in groups.values():
        above, below = _reached(np.stack([signed[i] for i in group], axis=1))
        p_values |= {i: ((1 + up) / (1 + DRAWS), (1 + down) / (1 + DRAWS)) for i, up, down in zip(group, above, below, strict=True)}
    return [p_values[i] for i in range(len(signed))]


def _reached(d: Floats) -> tuple[list[int], list[int]]:
    """Count the draws whose sums reach at least, and at most, each column's own sum.

    ``d`` is (n, columns). The signs come from a frozen stream in blocks; all at once would need gigabytes."""
    stream, total, slack = np.random.RandomState(0), d.sum(0), _ROUNDING * np.abs(d).sum(0)
    above, below = np.zeros(d.shape[1], dtype=np.int64), np.zeros(d.shape[1], dtype=np.int64)
    rows = max(1, BLOCK // len(d))
    for begin in range(0, DRAWS, rows):
        sums = (2.0 * stream.randint(0, 2, size=(min(rows, DRAWS - begin), len(d))) - 1.0) @ d  # equal to ``choice``, but twice as fast
        above += (sums >= total - slack).sum(0)
        below += (sums <= total + slack).sum(0)
    return above.tolist(), below.tolist()
