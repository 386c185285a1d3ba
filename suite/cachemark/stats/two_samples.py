"""Two independent samples: the rank-sum test (Mann and Whitney 1947).

It is written out, because importing ``scipy.stats`` takes longer than all tests of a report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy

from .sign_flip import Floats

_EXACT = 32  # values of the smaller sample, up to which the exact distribution is used


def p_greater(rows: Sequence[Sequence[float]], other: Sequence[float]) -> list[float]:
    """Return the p-values of "a row's values are not larger than ``other``", two independent samples each.

    Ties count half, and the exact distribution then gives a p-value that is too large rather than too small."""
    ordered, chances = np.sort(np.asarray(other, dtype=np.float64)), [0.0] * len(rows)
    for size in sorted({len(row) for row in rows}):
        alike = [k for k, row in enumerate(rows) if len(row) == size]
        values = np.array([rows[k] for k in alike], dtype=np.float64)
        larger = (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right")).sum(axis=1) / 2
        if min(size, len(ordered)) <= _EXACT:
            p = _exact(size, len(ordered))[np.floor(larger).astype(int)]
        else:
            p = _approximate(values, ordered, larger)
        for k, each in zip(alike, p, strict=True):
            chances[k] = float(each)
    return chances


def _exact(n: int, m: int) -> Floats:
    """Return the probability of each number of pairs, 0 to n·m, or a larger one, without ties.

    Numbers of pairs are equally likely to be u and n·m − u. The number of orders with u pairs is a coefficient of a Gaussian binomial."""
    few, many = sorted((n, m))
    orders = np.zeros(few * many + 1)
    orders[0] = 1
    for k in range(1, few + 1):
        orders[many + k :] -= orders[: -(many + k)].copy()
        for begin in range(k):
            orders[begin::k] = np.cumsum(orders[begin::k])
    return np.minimum(np.cumsum(orders) / math.comb(n + m, n), 1.0)[::-1]


def _approximate(values: Floats, ordered: Floats, larger: Floats) -> Floats:
    """Return the p-values of numbers of ``larger`` pairs by a normal distribution, corrected for ties and continuity."""
    n, m = values.shape[1], len(ordered)
    pooled = np.concatenate([values, np.broadcast_to(ordered, (len(values), m))], axis=1)
    ties = np.array([(counts**3 - counts).sum() for counts in (np.unique(row, return_counts=True)[1] for row in pooled)])
    spread = np.sqrt(n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1))))
    with np.errstate(divide="ignore"):  # all values are equal
        return np.asarray(scipy.special.ndtr(-(larger - n * m / 2 - 0.5) / spread))
