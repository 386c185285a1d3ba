"""Non-inferiority that may be asked after every seed: the capital of a gambler who bets that a loss is smaller than a margin.

Each stake's capital is multiplied at every seed by 1 + stake · (gain + margin) / (−margin − least possible gain), which is 1 on average
or less where the mean gain is −margin or less, and never negative. So is the average over all stakes: a nonnegative supermartingale.
By Ville's inequality it ever reaches 1/α with a probability of at most α, however many interim analyses there are and whenever they stop
(Waudby-Smith and Ramdas 2024). The price is power: 88 seeds instead of 59 where nothing is ever lost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .non_inferiority import ALPHA, MOST
from .sign_flip import Floats

_STAKES = (np.arange(200) + 0.5) / 200


def p_at_any_time(gains: ArrayLike, margin: float, least: float) -> Floats:
    """Return the p-value of "mean loss of ``margin`` or more" after each seed. It never rises.

    For series (..., seeds) none of whose gains can be below ``least``: one over the highest capital so far."""
    values = np.asarray(gains, dtype=np.float64)
    capital = np.zeros((*values.shape[:-1], len(_STAKES)))
    p_values = np.empty(values.shape)
    for k in range(values.shape[-1]):
        capital += np.log1p(_STAKES * (values[..., k, None] + margin) / (-margin - least))
        most = capital.max(-1)
        p_values[..., k] = most + np.log(np.exp(capital - most[..., None]).mean(-1))
    return np.minimum(np.exp(-np.maximum.accumulate(p_values, axis=-1)), 1.0)


def loss_that_shows_at_any_time(n: int, least: float, claims: int) -> float:
    """Return the smallest margin at which ``n`` seeds without any loss are non-inferior.

    As the strongest of so many ``claims``."""
    low, high = 0.0, -least
    for _ in range(50):
        middle = (low + high) / 2
        growth = n * np.log1p(_STAKES * middle / (-middle - least))
        significant = np.logaddexp.reduce(growth) - np.log(len(growth)) >= np.log(claims / ALPHA)
        low, high = (low, middle) if significant else (middle, high)
    return high


def seeds_to_show_at_any_time(gains: ArrayLike, margin: float, least: float, claims: int) -> int | None:
    """Estimate the number of seeds that would show non-inferiority if they went on like these.

    As the strongest of so many ``claims``; None where they lose the margin, or where it takes more than a million."""
    values = np.asarray(gains, dtype=np.float64)
    growth = np.log1p(_STAKES[:, None] * (values + margin) / (-margin - least)).mean(-1)

    def is_shown(n: int) -> bool:
        return bool(np.logaddexp.reduce(n * growth) - np.log(len(growth)) >= np.log(claims / ALPHA))

    if values.mean() <= -margin or not is_shown(MOST):
        return None
    low, high = 0, MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_shown(middle) else (middle, high)
    return high
