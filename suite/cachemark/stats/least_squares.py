"""Straight lines by least squares."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class FittedLine(NamedTuple):
    """A line y = ``intercept`` + ``slope``·x that explains the fraction ``r2`` of the variance."""

    slope: float
    intercept: float
    r2: float


def fitted_line(points: Sequence[tuple[float, float]]) -> FittedLine | None:
    """Return the line through points (x, y); None for fewer than three points or a single x."""
    if len(points) < 3 or len({x for x, _ in points}) == 1:
        return None
    xs, ys = zip(*points, strict=True)
    line = statistics.linear_regression(xs, ys)
    return FittedLine(line.slope, line.intercept, statistics.correlation(xs, ys) ** 2 if len(set(ys)) > 1 else 1.0)
