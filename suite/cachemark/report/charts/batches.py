"""Charts of one model over batches: throughput, memory, and the batches at which memory ran out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...core.result import Status
from .. import formatting as fmt
from ..view.case_group import CaseGroup
from ..view.report_row import ReportRow
from .axes import Axis, linear
from .chart import Chart
from .legend import Signs
from .svg import Curve, Point, XYPlot

_Cases = dict[tuple[str, str], list[ReportRow]]


def batches(group: CaseGroup, parts: Sequence[CaseGroup], signs: Signs) -> Iterable[Chart]:
    """Throughput and memory against batch, drawn with the smallest batch of a model's groups that differ in nothing else."""
    alike = sorted((part for part in parts if part.model == group.model and part.but_batch == group.but_batch and not part.searched),
                   key=lambda part: part.case.batch)
    if len(alike) < 2 or alike[0] is not group:
        return
    cases: _Cases = {}
    for part in alike:
        for row in part.rows:
            if row.timed:
                cases.setdefault((row.method, row.case.budget), []).append(row)
    columns = ("Case", *(f"Batch {part.case.batch}" for part in alike))
    yield _chart("speed", "Images per second against batch", "Images per second", cases, columns, signs,
                 lambda row: row.images_per_second, "{:.3g}".format, "Higher is better.")
    most = max((row.median("peak_memory") or 0.0 for rows in cases.values() for row in rows), default=0.0)
    unit, name = fmt.binary(most)
    yield _chart("memory", "Peak memory against batch", f"Peak memory ({name})", cases, columns, signs,
                 lambda row: _per(row.median("peak_memory"), unit), lambda value: fmt.size(value * unit), "Lower is better.")


def _per(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _chart(
    tab: str, title: str, up: str, cases: _Cases, columns: tuple[str, ...], signs: Signs, value: Callable[[ReportRow], float | None],
    text: Callable[[float], str], caption: str,
) -> Chart:
    """A line for each case over the batches, which stand evenly apart; what ran out of memory stands at the upper edge."""
    at = {name: k for k, name in enumerate(columns[1:])}
    measured = [found for rows in cases.values() for row in rows if row.ok and (found := value(row)) is not None]
    if not measured:
        return Chart(tab, title, "", None, columns, (), empty="Not measured.")
    y = linear(up, 0.0, 1.15 * max(measured))
    points, lines, table, keys = [], [], [], []
    for rows in cases.values():
        cells, places = [fmt.DASH] * (len(columns) - 1), []
        for row in rows:
            x, found = at[f"Batch {row.case.batch}"], value(row) if row.ok else None
            cells[x] = str(row.outcome.status) if found is None else text(found)
            tip = f"{fmt.plain(row.case.label, 60)} · batch {row.case.batch} · {cells[x]}"
            if found is not None:
                places.append((float(x), found))
                points.append(Point(x, found, signs.colour(row), tip, signs.series(row), signs.shape(row)))
            elif row.outcome.status is Status.OOM:
                points.append(Point(x, y.high, signs.colour(row), tip, signs.series(row), "plus", name="oom"))
        if places:
            lines.append(Curve(tuple(places), signs.colour(rows[0]), series=signs.series(rows[0])))
        table.append((rows[0].case.label, *cells))
        keys.append(rows[0].case.key)
    ticks = tuple((float(k), name.removeprefix("Batch ")) for name, k in at.items())
    plot = XYPlot(Axis("Batch", -0.2, len(at) - 0.8, ticks), y, tuple(points), tuple(lines))
    return Chart(tab, title, f"{caption} A cross at the upper edge: out of memory.", plot, columns, tuple(table), tuple(keys))
