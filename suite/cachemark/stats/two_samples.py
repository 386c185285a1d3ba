"""Two independent samples: the rank-sum test (Mann and Whitney 1947)."""

from __future__ import annotations

from collections.abc import Sequence

import scipy

_EXACT = 32  # values of the smaller sample, up to which the exact distribution is used


def p_greater(mine: Sequence[float], other: Sequence[float]) -> float:
    """Return the p-value of "``mine`` are not larger than ``other``", two independent samples.

    Ties count half, and the exact distribution then gives a p-value that is too large rather than too small."""
    exact = min(len(mine), len(other)) <= _EXACT
    return float(scipy.stats.mannwhitneyu(mine, other, alternative="greater", method="exact" if exact else "asymptotic").pvalue)
