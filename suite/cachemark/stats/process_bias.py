"""Bias of processes: what A/A pairs show of it, and the minimum effect that it requires.

A process, or a side of a comparison for a whole night, can be faster or slower than another one of equal code, for example because of its
memory layout. Pairs do not show a bias that all of them share, so it is estimated from equal code that runs from a second copy.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from .paired_test import Rule, hodges_lehmann
from .sign_flip import Floats

LEAST_PAIRS, SIGN_DRAWS = 5, 999  # pairs of a sample that can show a lasting bias, and draws of their signs
FALSE_ALARMS = 0.05  # share of nights in which bias alone may reach the minimum effect
TAILS = (3.0, 4.0, 6.0, 10.0, 30.0, 1000.0)  # degrees of freedom of Student's t, heaviest tails first; the last one is nearly normal
PLAUSIBLE = 1.35  # log-likelihood below the largest one that a one-sided 95 % interval includes
NODES, SCALES = 15, 90  # of the integration over noise, and scales that are tried, 6 % apart


def process_deviation(unchanged: ArrayLike) -> float:
    """Return the standard deviation that a process adds to the log of its times.

    It is the upper end of its one-sided 95 % interval.

    ``unchanged``: log ratios of A/A pairs, each of two new processes with the same deviation and mean zero."""
    ratios = np.ravel(np.asarray(unchanged, dtype=np.float64))
    return math.sqrt(float((ratios**2).sum()) / 2 / float(scipy.stats.chi2.ppf(0.05, len(ratios))))


def process_bias(equal: Sequence[ArrayLike], family: int, keys: Sequence[tuple[Hashable, Hashable]]) -> float:
    """Return the minimum effect that constant bias between processes requires, a fraction.

    A bias of one side that lasts for a whole comparison is in all pairs of a configuration and invisible to their test. 0 if A/A tests show
    none.

    ``equal``: log ratios of A/A pairs, one sample per configuration and night. ``keys``: night and configuration of each sample, because
    samples of one of either may share a bias. With bias the centers vary more than random signs of their pairs explain (tested at 1 %, with
    a frozen stream). Rare large biases decide how often one of many configurations is wrong, and few samples do not show them: the largest
    bias that they do not rule out counts, see :func:`largest_plausible`. With the noise of the confirming pairs it gives the effect that no
    side of ``family`` unchanged configurations reaches in 95 % of nights."""
    samples = [(np.asarray(pairs, dtype=np.float64), key) for pairs, key in zip(equal, keys, strict=True) if np.size(pairs) >= LEAST_PAIRS]
    if len(samples) < 3:
        return 0.0
    stream = np.random.RandomState(0)  # a legacy stream never changes
    drawn = np.array([hodges_lehmann(x * stream.choice([-1.0, 1.0], size=(SIGN_DRAWS, len(x)))) ** 2 for x, _ in samples])
    centers = np.array([float(hodges_lehmann(x)) for x, _ in samples])
    sizes, noise = np.array([len(x) for x, _ in samples]), drawn.mean(axis=1)
    if (1 + (drawn.mean(axis=0) >= np.mean(centers**2)).sum()) / (1 + SIGN_DRAWS) > 0.01:
        return 0.0
    variance = max(0.0, float(np.mean((centers**2 - noise) * sizes / (sizes - 1))))  # signs turn a share 1/n of the bias into noise
    of_pairs = max(0.0, float(np.mean(noise * sizes - variance)))  # variance of one pair, without the bias that signs turned into noise
    nights, alike = (_alike(centers, [key[part] for _, key in samples], variance) for part in (0, 1))
    different = 1 + (family - 1) * (1 - nights.correlation)  # biases of a night: configurations may share one
    bias = largest_plausible(centers, np.sqrt(of_pairs / sizes), FALSE_ALARMS / 2 / different, 1 / (1 + nights.squares + alike.squares))
    error = float(scipy.stats.norm.isf(FALSE_ALARMS / 2 / family)) * math.sqrt(of_pairs / Rule(0.5, family).looks[0])
    common, own = bias * math.sqrt(nights.correlation), bias * math.sqrt(1 - nights.correlation)
    return math.expm1(common + math.hypot(own, error))  # a common bias adds to the largest of all errors


def largest_plausible(centers: Floats, noise: Floats, rate: float, weight: float = 1.0) -> float:
    """Return the largest bias exceeded at ``rate`` that ``centers``, (n,), do not rule out.

    Each center is a bias by Student's t of some scale and some degrees of freedom of ``TAILS``, plus a normal error of deviation ``noise``,
    (n,), integrated by Gauss and Hermite's rule. ``weight``: the share of the centers that is independent."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    true = (centers[:, None] - noise[:, None] * nodes) ** 2
    scales = math.sqrt(float(np.mean(centers**2))) * np.geomspace(0.05, 8, SCALES)
    likelihood = np.empty((len(TAILS), SCALES))
    for i, freedom in enumerate(TAILS):
        constant = scipy.special.gammaln((freedom + 1) / 2) - scipy.special.gammaln(freedom / 2) - math.log(freedom * math.pi) / 2
        for j, scale in enumerate(scales):
            density = (1 + true / (freedom * scale**2)) ** (-(freedom + 1) / 2) @ weights
            likelihood[i, j] = (np.log(np.maximum(density, 1e-300)) + constant - math.log(scale)).sum()
    plausible = weight * (likelihood.max() - likelihood) <= PLAUSIBLE
    return float((plausible * scipy.stats.t.isf(rate, TAILS)[:, None] * scales).max())


class _Alike(NamedTuple):
    """``correlation`` of centers of one group, and its effect on the variance of their mean square.

    Squares of normal values with correlation r have correlation r²."""

    correlation: float
    squares: float


def _alike(centers: Floats, groups: Sequence[Hashable], variance: float) -> _Alike:
    of_group = [centers[[i for i, other in enumerate(groups) if other == group]] for group in dict.fromkeys(groups)]
    twos = sum(len(values) * (len(values) - 1) for values in of_group)
    if not twos or not variance:
        return _Alike(0.0, 0.0)
    products = sum(float(values.sum() ** 2 - (values**2).sum()) for values in of_group) / twos
    correlation = min(max(products / variance, 0.0), 1.0)
    return _Alike(correlation, twos / len(centers) * correlation**2)
