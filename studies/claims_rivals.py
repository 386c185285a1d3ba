"""Alternative rules for "non-inferior": the report's earlier one, common tests, and proven bounds.

Each rule gets samples of gains as counts (samples, values) of their common values, and returns which samples it calls non-inferior. Gains
are in −1 … 1, and ``alpha`` is the level of one claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, ksone, t

from cachemark.stats.gaffke import chances_at_most

Floats = NDArray[np.float64]
Claimed = NDArray[np.bool_]
Rule = Callable[[Floats, Floats, float, float], Claimed]
RESAMPLES = 400  # of the bootstrap


def gaffke(values: Floats, counts: Floats, margin: float, alpha: float) -> Claimed:
    """Apply the rule of the report, see :mod:`cachemark.stats.non_inferiority`."""
    alike, whose = np.unique(counts, axis=0, return_inverse=True)
    return (chances_at_most(values, alike, -margin, -1.0) <= alpha)[whose.reshape(-1)]


def betting(values: Floats, counts: Floats, margin: float, alpha: float) -> Claimed:
    """Bet on a smaller loss, with the mean capital of all stakes (Waudby-Smith and Ramdas 2024).

    Proven, also for repeated looks.
    """
    stakes = (np.arange(400) + 0.5) / 400
    logs = counts @ np.log1p(stakes / (1 - margin) * (values[:, None] + margin))
    return np.log(np.exp(logs - logs.max(1, keepdims=True)).mean(1)) + logs.max(1) >= -math.log(alpha)


def student(values: Floats, counts: Floats, margin: float, alpha: float) -> Claimed:
    n, mean, spread = _moments(values, counts)
    error = np.sqrt(spread / n)
    held = t.sf((mean + margin) / np.where(error > 0, error, 1), n - 1)
    return np.where(error > 0, held <= alpha, mean > -margin)


def bootstrap(values: Floats, counts: Floats, margin: float, alpha: float) -> Claimed:
    """Use the lower end of a 95 % percentile interval for any ``alpha``, as the report did before."""
    n, stream = int(counts[0].sum()), np.random.default_rng(0)
    sums = np.stack([stream.multinomial(n, counts / n) @ values for _ in range(RESAMPLES)])
    return np.quantile(sums / n, 0.025, axis=0) >= -margin


def hoeffding(values: Floats, counts: Floats, margin: float, alpha: float) -> Claimed:
    n, mean, _ = _moments(values, counts)
    return mean + margin >= np.sqrt(2 * math.log(1 / alpha) / n)


def bentkus(values: Floats, counts: Floats, margin: float, alpha: float) -> Claimed:
    """Use e times the tail of a binomial distribution (Bentkus 2004)."""
    n, mean, _ = _moments(values, counts)
    return math.e * binom.sf(np.ceil(n * (mean + 1) / 2 - 1e-9) - 1, n, (1 - margin) / 2) <= alpha


def empirical_bernstein(values: Floats, counts: Floats, margin: float, alpha: float) -> Claimed:
    """Use the empirical Bernstein bound (Maurer and Pontil 2009)."""
    n, mean, spread = _moments(values, counts)
    log = math.log(2 / alpha)
    return mean + margin >= np.sqrt(2 * spread * log / n) + 14 * log / (3 * (n - 1))


def anderson(values: Floats, counts: Floats, margin: float, alpha: float) -> Claimed:
    """Use the mean of the highest distribution function in Smirnov's one-sided band (Anderson 1969)."""
    n = int(counts[0].sum())
    order = np.argsort(values)
    reach = np.minimum(np.cumsum(counts[:, order], axis=1) / n + ksone.isf(alpha, n), 1)
    highest = np.append(values[order], 1.0)
    return highest[-2] * 1.0 - (reach[:, :-1] * np.diff(highest[:-1])).sum(1) - ksone.isf(alpha, n) * (highest[0] + 1) >= -margin


RULES: Mapping[str, Rule] = {
    "Gaffke (the report)": gaffke, "betting, mixed": betting, "Anderson": anderson, "Bentkus": bentkus,
    "empirical Bernstein": empirical_bernstein, "Hoeffding": hoeffding, "Student": student, "bootstrap (before)": bootstrap,
}  # fmt: skip


def _moments(values: Floats, counts: Floats) -> tuple[Floats, Floats, Floats]:
    """Return number, mean and variance of each sample."""
    n = counts.sum(1)
    mean = counts @ values / n
    return n, mean, np.maximum(counts @ values**2 - n * mean**2, 0) / (n - 1)
