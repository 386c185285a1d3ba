"""One model at several batches: what a larger batch gains, what it needs, and where memory ran out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...core.result import Status
from .. import formatting as words
from ..view.row import Row
from ..view.section import Section
from .chart import Chart, Signs
from .drawing import Axis, Curve, Field, Point, linear

_Cases = dict[tuple[str, str], list[Row]]


def batches(section: Section, parts: Sequence[Section], signs: Signs) -> Iterable[Chart]:
    """Throughput and memory against batch, drawn with the smallest batch of a model's sections that differ in nothing else."""
    alike = sorted((part for part in parts if part.model == section.model and but_batch(part) == but_batch(section) and not part.searched),
                   key=lambda part: part.case.batch)
    if len(alike) < 2 or alike[0] is not section:
        return
    cases: _Cases = {}
    for part in alike:
        for row in part.rows:
            if row.timed:
                cases.setdefault((row.method, row.case.budget), []).append(row)
    columns = ("Case", *(f"Batch {part.case.batch}" for part in alike))
    yield _chart("speed", "Images per second against batch", "Images per second", cases, columns, signs, images_per_second, "{:.3g}".format,
                 "Up is better.")
    most = max((row.median("peak_memory") or 0.0 for rows in cases.values() for row in rows), default=0.0)
    unit, name = words.binary(most)
    yield _chart("memory", "Peak memory against batch", f"Peak memory ({name})", cases, columns, signs,
                 lambda row: _per(row.median("peak_memory"), unit), lambda value: words.size(value * unit), "Down is better.")


def but_batch(section: Section) -> tuple[object, ...]:
    """Everything that sections of one model may differ in, save the batch."""
    case = section.case
    return case.weights, case.grid, case.conditions, case.sampling, case.dtype, case.engine, case.device_class


def images_per_second(row: Row) -> float | None:
    """Images of a batch over its median latency, or None where it was not timed."""
    latency = row.median("latency")
    return row.case.batch / latency if latency else None


def _per(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _chart(
    tab: str, title: str, up: str, cases: _Cases, columns: tuple[str, ...], signs: Signs, value: Callable[[Row], float | None],
    text: Callable[[float], str], caption: str,
) -> Chart:
    """A line for each case over the batches, which stand evenly apart; what ran out of memory stands at the upper edge."""
    at = {name: k for k, name in enumerate(columns[1:])}
    held = [found for rows in cases.values() for row in rows if row.ok and (found := value(row)) is not None]
    if not held:
        return Chart(tab, title, "", None, columns, (), empty="It was not measured.")
    y = linear(up, 0.0, 1.15 * max(held))
    points, lines, table, keys = [], [], [], []
    for rows in cases.values():
        cells, places = [words.DASH] * (len(columns) - 1), []
        for row in rows:
            x, found = at[f"Batch {row.case.batch}"], value(row) if row.ok else None
            cells[x] = str(row.outcome.status) if found is None else text(found)
            tip = f"{words.plain(row.case.label, 60)} · batch {row.case.batch} · {cells[x]}"
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
    field = Field(Axis("Batch", -0.2, len(at) - 0.8, ticks), y, tuple(points), tuple(lines))
    return Chart(tab, title, f"{caption} A cross at the upper edge ran out of memory.", field, columns, tuple(table), tuple(keys))
