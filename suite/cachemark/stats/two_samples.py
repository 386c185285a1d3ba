"""Two independent samples: the rank-sum test (Mann and Whitney 1947)."""

from __future__ import annotations

from collections.abc import Sequence

import scipy

_EXACT = 32  # values of the smaller sample, up to which the exact distribution is used


def p_greater(rows: Sequence[Sequence[float]], other: Sequence[float]) -> list[float]:
    """Return the p-values of "a row's values are not larger than ``other``", two independent samples each.

    Ties count half, and the exact distribution then gives a p-value that is too large rather than too small."""
    chances = [0.0] * len(rows)
    for size in sorted({len(row) for row in rows}):
        alike = [k for k, row in enumerate(rows) if len(row) == size]
        method = "exact" if min(size, len(other)) <= _EXACT else "asymptotic"
        tested = scipy.stats.mannwhitneyu([rows[k] for k in alike], [other], alternative="greater", method=method, axis=1)
        for k, p in zip(alike, tested.pvalue, strict=True):
            chances[k] = float(p)
    return chances
