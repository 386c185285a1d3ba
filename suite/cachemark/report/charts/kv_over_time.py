"""A chart of the live bytes of keys and values while an image is made."""

from __future__ import annotations

from collections.abc import Iterable

from .. import formatting as fmt
from ..view.case_group import CaseGroup
from ..view.report_row import ReportRow
from .axes import linear
from .bars import MOST, first, keys
from .chart import Chart
from .legend import Signs
from .svg import Curve, Point, XYPlot

_QUARTERS = (0.25, 0.5, 0.75, 1.0)


def kv_over_time(group: CaseGroup, signs: Signs) -> Iterable[Chart]:
    """A line for every case that keeps anything; it ends in the shape of its budget."""
    rows = [row for row in group.rows if row.ok and row.timed and any(_live(row).values())]
    if not rows:
        return
    unit, name = fmt.binary(max(max(_live(row).values()) for row in rows))
    paths = [(row, tuple((float(tokens), live / unit) for tokens, live in _live(row).items())) for row in rows]
    lines = tuple(Curve(path, signs.colour(row), series=signs.series(row)) for row, path in paths[:MOST])
    points = tuple(Point(*path[-1], signs.colour(row), _tip(row, path[-1][1] * unit),
                         signs.series(row), signs.shape(row), scale=0.7) for row, path in paths[:MOST])
    x = linear("Tokens of the image", 0.0, max(path[-1][0] for _, path in paths))
    y = linear(f"Live keys and values ({name})", 0.0, 1.06 * max(high for _, path in paths for _, high in path))
    said = ("At the end of each scale, or of each line after eviction, over all rows of the batch, in one untimed generation. "
            "A masked model, which holds all tokens from the start, has no line.")
    said += first(rows)
    columns = ("Case", *(f"After {fmt.percent(part)}" for part in _QUARTERS), "Most")
    table = tuple((row.case.label, *(fmt.size(_at(row, part)) for part in _QUARTERS), fmt.size(max(_live(row).values())))
                  for row in rows)
    yield Chart("memory", "Keys and values over an image", said, XYPlot(x, y, points, lines), columns, table, keys(rows))


def _tip(row: ReportRow, size: float) -> str:
    return f"{fmt.plain(row.case.label, 60)}: {fmt.size(size)} at the end of the image"


def _live(row: ReportRow) -> dict[int, float]:
    """Live bytes by the number of tokens made so far; empty where they were not noted."""
    noted = row.outcome.facts.get("live_bytes") or {"tokens": [], "live": []}
    return dict(zip(noted["tokens"], noted["live"], strict=True))


def _at(row: ReportRow, part: float) -> float:
    """Live bytes at the first noted place behind this part of the image."""
    noted = _live(row)
    end = part * max(noted)
    return noted[min(tokens for tokens in noted if tokens >= end)]
