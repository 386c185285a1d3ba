"""Infinity's published token maps of every aspect ratio, coarse to fine.

From the table of scale schedules in the authors' code (FoundationVision/Infinity), whose keys are height / width. An image of fewer pixels
has the first maps of its ratio. Ratios below 1 swap rows and columns.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..cache.layout import Grid, squares

SIDES = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64)  # of square images of 1024 pixels
COUNTS = {256: 7, 512: 10, 768: 12, 1024: 13}  # maps of a resolution, by the pixels along a side of its square images
_TALL = {
    1.25: "1x1 2x2 3x3 5x4 10x8 15x12 20x16 25x20 30x24 35x28 45x36 55x44 70x56",
    1.333: "1x1 2x2 4x3 8x6 12x9 16x12 20x15 24x18 28x21 36x27 48x36 60x45 72x54",
    1.5: "1x1 2x2 3x2 6x4 9x6 15x10 21x14 27x18 33x22 39x26 48x32 63x42 78x52",
    1.75: "1x1 2x2 3x3 7x4 11x6 14x8 21x12 28x16 35x20 42x24 56x32 70x40 84x48",
    2.0: "1x1 2x2 4x2 6x3 10x5 16x8 22x11 30x15 38x19 46x23 60x30 74x37 90x45",
    2.5: "1x1 2x2 5x2 10x4 15x6 20x8 25x10 30x12 40x16 50x20 65x26 80x32 100x40",
    3.0: "1x1 2x2 6x2 9x3 15x5 21x7 27x9 36x12 45x15 54x18 72x24 90x30 111x37",
}


def _maps(line: str) -> tuple[Grid, ...]:
    return tuple((int(rows), int(columns)) for rows, _, columns in (item.partition("x") for item in line.split()))


RATIOS: dict[float, tuple[Grid, ...]] = {1.0: squares(SIDES)}  # height / width, cut to three decimals: maps of 1024 pixels
for _ratio, _line in _TALL.items():
    RATIOS[_ratio] = _maps(_line)
    RATIOS[math.floor(1000 / _ratio) / 1000] = tuple((columns, rows) for rows, columns in _maps(_line))


class Schedule(NamedTuple):
    """Token maps, and the last map of 1024 pixels of their ratio."""

    scales: tuple[Grid, ...]
    finest: Grid


def schedules(pixels: int) -> dict[Grid, Schedule]:
    """Return the schedule of every ratio at a resolution of :data:`COUNTS`, by the last map."""
    count = COUNTS[pixels]
    return {maps[count - 1]: Schedule(maps[:count], maps[-1]) for maps in RATIOS.values()}
