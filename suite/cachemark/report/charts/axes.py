"""Axes of drawings: their ends, their ticks, and where a value lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """``ticks`` are places with their texts; ``root``: a square root is drawn, which spreads what lies near 0."""

    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    root: bool = False

    def at(self, value: float) -> float:
        """The place of a value, from 0 at the low end to 1 at the high end."""
        if self.root:
            return math.sqrt(max(value, 0.0) / self.high)
        return (value - self.low) / (self.high - self.low)


def round_ticks(low: float, high: float, count: int = 5) -> tuple[float, ...]:
    """Round places between two ends (1, 2 or 5 times a power of ten apart), about ``count`` of them."""
    rough = (high - low) / max(count, 1)
    if not rough > 0:
        return (low,)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(round(k * step, 12) for k in range(first, last + 1))


def linear(title: str, low: float, high: float, *, count: int = 5) -> Axis:
    """An axis with round ticks."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    return Axis(title, low, high, tuple((tick, f"{tick:g}") for tick in round_ticks(low, high, count)))


def rooted(title: str, top: float) -> Axis:
    """A square-root axis from 0: ticks are evenly spread on the page, and each is one digit long."""
    top = top or 1e-6
    wanted = [float(f"{top * (k / 5) ** 2:.1g}") for k in range(1, 6)]
    places = [0.0, *dict.fromkeys(value for value in wanted if value <= 1.06 * top)]
    return Axis(title, 0.0, 1.06 * top, tuple((place, f"{place:g}") for place in places), root=True)


def ranged(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """The ends of an axis that holds all values and a little more."""
    low, high = min(values), max(values)
    more = share * ((high - low) or abs(high) or 1.0)
    return low - more, high + more
