"""Gaffke's test and bounds of the mean of values with a known lower limit, for any number of values.

Values Y ≥ 0 and one more value at 0 are given random weights, uniform on the simplex. The probability that the weighted mean is at most m
is the p-value of "the mean is at most m" (Gaffke 2005); the m with a p-value of 2.5 % is the lower bound of an interval (Learned-Miller and
Thomas 2019). For binary values it is the exact binomial test, and the bound is Clopper and Pearson's. Validity is proven for those and
conjectured otherwise; no counter-example is known, and ``studies/claims_study.py`` searches for one. No variance is estimated, so rare
losses are accounted for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from .sign_flip import Floats

_STEPS = 60  # at most, to the saddle point
_CLOSE = 1e-9  # relative: any line near it gives the same integral
_POINTS = 64  # of the integral; 50 agree with 800 in ten digits
_REACH = 9.0  # sinh of it is 4052 widths of the peak
_FEW = 64  # distinct values that are counted instead of listed one by one


def weights(stream: np.random.RandomState, n: int, draws: int) -> Floats:
    """Return weights of n values and one more, uniform on the simplex: columns of (n + 1, draws)."""
    drawn = stream.standard_exponential((draws, n + 1))
    return np.ascontiguousarray((drawn / drawn.sum(axis=1, keepdims=True)).T)


def chance_at_most(values: Sequence[float], limit: float, least: float = 0.0) -> float:
    """Return the p-value of "the mean is at most ``limit``" of ``values`` that are at least ``least``."""
    return float(chances_of_rows(np.asarray(values, dtype=np.float64)[None, :], limit, least)[0])


def chances_of_rows(rows: Floats, limit: float, least: float = 0.0, times: float = 1.0) -> Floats:
    """Return :func:`chance_at_most` of each row of values, (samples, values), as if each had occurred so many ``times``."""
    values = np.unique(rows)
    if len(values) > _FEW:
        return chances_at_most(rows, np.full(rows.shape, times), limit, least)
    counts = np.stack([(rows == value).sum(axis=1) for value in values], axis=1)
    alike, whose = np.unique(counts, axis=0, return_inverse=True)
    return chances_at_most(values, alike * times, limit, least)[whose.reshape(-1)]


def chances_at_most(values: ArrayLike, counts: ArrayLike, limit: float, least: float = 0.0) -> Floats:
    """Return :func:`chance_at_most` of many samples.

    ``values``: common ones, (values,), or each sample's own, (samples, values); ``counts``, (samples, values), is the number of times each
    occurs. With exponential weights E the weighted mean is at most m
    exactly if the sum Q of E·(Y − m) is at most 0. That probability is an integral of exp(K(s)) / s, where K is the cumulant generating
    function of Q, along a line through the saddle point, where it falls fastest."""
    many = np.asarray(counts, dtype=np.float64)
    many = np.concatenate([many, np.ones((len(many), 1))], axis=1)
    own = np.asarray(values, dtype=np.float64)
    off = np.where(many > 0, np.concatenate([own, np.full((*own.shape[:-1], 1), least)], axis=-1) - limit, 0.0)
    chances = np.where(off.max(1) <= 0, 1.0, 0.0)  # no value is above the limit, or all are if the limit is below them
    split = (off.max(1) > 0) & (off.min(1) < 0)
    if split.any():
        chances[split] = _integral(off[split], many[split])
    return chances


def _integral(off: Floats, many: Floats) -> Floats:
    """Return the probability that Q ≤ 0; ``off`` and ``many`` are (samples, values)."""
    above = (many * off).sum(1) > 0
    low, high = np.where(above, 1 / off.min(1), 0.0), np.where(above, 0.0, 1 / off.max(1))
    s = (low + high) / 2
    for _ in range(_STEPS):  # Newton's steps, halvings where one leaves the bracket
        ratio = off / (1 - s[:, None] * off)
        rise = (many * ratio).sum(1) - 1 / s
        low, high = np.where(rise > 0, low, s), np.where(rise > 0, s, high)
        step = s - rise / ((many * ratio**2).sum(1) + 1 / s**2)
        before, s = s, np.where((step > low) & (step < high), step, (low + high) / 2)
        if (np.abs(s - before) <= _CLOSE * np.abs(s)).all():
            break
    width = 1 / np.sqrt((many * (off / (1 - s[:, None] * off)) ** 2).sum(1) + 1 / s**2)
    at = (np.arange(_POINTS) + 0.5) * (_REACH / _POINTS)
    line = s[:, None] + 1j * np.sinh(at) * width[:, None]
    logs = -np.log(line * np.sign(s)[:, None])
    if len(off) < off.shape[1]:
        for log, points, weight, place in zip(logs, line, many, off, strict=True):
            log -= weight @ np.log1p(-points * place[:, None])
    else:
        for weight, place in zip(many.T, off.T, strict=True):
            logs -= weight[:, None] * np.log1p(-line * place[:, None])
    tail = (np.exp(logs).real * np.cosh(at)).sum(1) * (_REACH / _POINTS) * width / np.pi
    return np.clip(np.where(above, tail, 1 - tail), 0.0, 1.0)
