"""Line charts: over the tokens of an image, over batch sizes, and by run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from ...analysis.case_group import CaseGroup
from ...analysis.report_row import ReportRow
from ...analysis.run_history import CaseHistory, RunHistory
from ...core import formatting as fmt
from ...core.result import Status
from ...core.units import PEAK
from .chart import INK, MOST, Chart, Signs, first, over, tip
from .svg import Axis, Curve, Point, XYPlot, linear, ranged

_QUARTERS = (0.25, 0.5, 0.75, 1.0)
_TICKS = 12  # of the axis of runs, at most
_SHAPES = {"step": "diamond", "ramp": "triangle"}  # of the marks of changes
_Cases = dict[tuple[str, str], list[ReportRow]]


# -- over an image ----------------------------------------------------------------------------------------------------
def kv_over_time(group: CaseGroup, signs: Signs) -> Iterable[Chart]:
    """Yield the chart of used KV memory over an image."""
    rows = [row for row in group.rows if row.ok and row.timed and any(_live(row).values())]
    if not rows:
        return
    unit, name = fmt.binary(max(max(_live(row).values()) for row in rows))
    paths = [(row, tuple((float(tokens), live / unit) for tokens, live in _live(row).items())) for row in rows]
    lines = tuple(Curve(path, signs.color(row), series=signs.series(row)) for row, path in paths[:MOST])
    points = tuple(Point(*path[-1], signs.color(row), f"{tip(row)}: {fmt.size(path[-1][1] * unit)} at the end of the image",
                         signs.series(row), signs.shape(row), scale=0.7) for row, path in paths[:MOST])
    x = linear("Tokens of the image", 0.0, max(path[-1][0] for _, path in paths))
    y = linear(f"Used keys and values ({name})", 0.0, 1.06 * max(high for _, path in paths for _, high in path))
    caption = "Used bytes after each scale or token row, whole batch, one untimed generation." + first(rows)
    columns = (*(f"After {fmt.percent(part)}" for part in _QUARTERS), "Most")
    figures = ([fmt.size(size) for size in (*(_at(row, part) for part in _QUARTERS), max(_live(row).values()))] for row in rows)
    yield Chart.of_cases("memory", "Keys and values over an image", caption, XYPlot(x, y, points, lines), columns, rows, figures)


def _live(row: ReportRow) -> dict[int, float]:
    over_image = row.outcome.facts.kv_by_step
    return dict(zip(over_image.tokens, over_image.live, strict=True)) if over_image else {}


def _at(row: ReportRow, part: float) -> float:
    tokens, live = zip(*sorted(_live(row).items()), strict=True)
    return float(np.interp(part * tokens[-1], (0, *tokens), (0, *live)))


# -- over batches -----------------------------------------------------------------------------------------------------
def batches(group: CaseGroup, parts: Sequence[CaseGroup], signs: Signs) -> Iterable[Chart]:
    """Yield throughput and memory by batch size, with the group of the smallest batch."""
    alike = sorted((part for part in parts if part.but_batch == group.but_batch and not part.searched),
                   key=lambda part: part.case.batch)
    sizes = sorted({part.case.batch for part in alike})
    if len(sizes) < 2 or alike[0] is not group:
        return
    cases: _Cases = {}
    for row in (row for part in alike for row in part.rows if row.timed):
        same_case = cases.setdefault((row.method, row.case.stated_budget), [])
        if row.case.batch not in {other.case.batch for other in same_case}:  # two blocks may have one batch
            same_case.append(row)
    yield _batch_chart("speed", "Images per second against batch", "Images per second", cases, sizes, signs,
                 lambda row: row.images_per_second, "{:.3g}".format, "Higher is better.")
    most = max((row.median(PEAK) or 0.0 for rows in cases.values() for row in rows), default=0.0)
    unit, name = fmt.binary(most)
    yield _batch_chart("memory", "Peak memory against batch", f"Peak memory ({name})", cases, sizes, signs,
                 lambda row: over(row.median(PEAK), unit), lambda value: fmt.size(value * unit), "Lower is better.")


def _batch_chart(
    tab: str, title: str, up: str, cases: _Cases, sizes: Sequence[int], signs: Signs, value: Callable[[ReportRow], float | None],
    text: Callable[[float], str], caption: str,
) -> Chart:
    at = {batch: k for k, batch in enumerate(sizes)}
    measured = [measured_value for rows in cases.values() for row in rows if row.ok and (measured_value := value(row)) is not None]
    if not measured:
        return Chart(tab, title, empty="Not measured.")
    y = linear(up, 0.0, 1.15 * max(measured))
    points, lines, table = [], [], []
    for rows in cases.values():
        cells, places = [fmt.DASH] * len(sizes), []
        for row in rows:
            x, measured_value = at[row.case.batch], value(row) if row.ok else None
            cells[x] = str(row.outcome.status) if measured_value is None else text(measured_value)
            label = tip(row, f"batch {row.case.batch}", cells[x])
            if measured_value is not None:
                places.append((float(x), measured_value))
                points.append(Point(x, measured_value, signs.color(row), label, signs.series(row), signs.shape(row)))
            elif row.outcome.status is Status.OOM:
                points.append(Point(x, y.high, signs.color(row), label, signs.series(row), "plus", name="oom"))
        if places:
            lines.append(Curve(tuple(places), signs.color(rows[0]), series=signs.series(rows[0])))
        table.append(cells)
    ticks = tuple((float(k), str(batch)) for batch, k in at.items())
    plot = XYPlot(Axis("Batch", -0.2, len(at) - 0.8, ticks), y, tuple(points), tuple(lines))
    caption = f"{caption} Cross at the top: out of memory."
    return Chart.of_cases(tab, title, caption, plot, [f"Batch {batch}" for batch in sizes], [rows[0] for rows in cases.values()], table)


# -- run by run -------------------------------------------------------------------------------------------------------
def history(runs: RunHistory | None, signs: Signs) -> Iterable[Chart]:
    """Yield relative latencies by run with their changes, and the full cache's latency."""
    if runs is None:
        return
    if runs.candidates:
        yield _run_chart("Relative latency by run", "Latency / full cache (×)", runs.candidates, runs, signs,
                     "1 is the full cache of the same run.", fmt.times)
    if runs.full:
        yield _run_chart("Full cache latency by run", "Latency (s)", (runs.full,), runs, Signs({}, {}),
                     "Changes here come from the machine, its software or the full cache.", fmt.seconds)


def _run_chart(
    title: str, y_title: str, cases: Sequence[CaseHistory], runs: RunHistory, signs: Signs, caption: str, text: Callable[[float], str],
) -> Chart:
    points, lines, drawn = [], [], cases[:MOST]
    for case in drawn:
        row, places = case.row, [(float(k), value) for k, value in enumerate(case.values) if value is not None]
        lines.append(Curve(tuple(places), signs.color(row), series=signs.series(row)))
        points += [Point(x, y, signs.color(row), tip(row, f"run {runs.names[int(x)]}", text(y)), signs.series(row), signs.shape(row))
                   for x, y in places]
    points += [Point(float(change.first), case.values[change.first] or 0.0, INK, fmt.plain(sentence, 300), signs.series(case.row),
                     _SHAPES[change.kind], hollow=True, scale=1.9) for case in drawn for change, sentence in case.changes]
    y = linear(y_title, *ranged([point.y for point in points], 0.1))
    changes = [k for k, (before, now) in enumerate(pairwise(runs.fingerprints), 1) if before != now]
    lines += [Curve(((k - 0.5, y.low), (k - 0.5, y.high)), dash="2 3") for k in changes]
    last, notes = len(runs.names) - 1, tuple(sentence for case in cases for _, sentence in case.changes)
    blind = tuple(case.blind for case in cases if case.blind)
    ticks = tuple((float(k), runs.names[k].split(" · ")[0]) for k in range(0, last + 1, 1 + last // _TICKS))
    plot = XYPlot(Axis("Run", -0.3, last + 0.3, ticks), y, tuple(points), tuple(lines))
    figures = ([fmt.DASH if value is None else text(value) for value in case.values] for case in cases)
    text_below = caption + first(cases)
    text_below += " Dotted: the numerics fingerprint changes." if changes else ""
    text_below += " Hollow: ◇ step, △ start of a ramp." if notes else ""
    return Chart.of_cases("history", title, text_below, plot, runs.names, [case.row for case in cases], figures, (*notes, *blind))
