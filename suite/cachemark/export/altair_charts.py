"""Charts of the report as Altair charts, for notebooks and papers. Needs the extra ``plots``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from ..analysis.report_view import ReportView
from ..core.errors import NothingMeasured, unknown
from ..report.charts.chart import Chart, ChartSet
from ..report.charts.svg import Axis, RowPlot, XYPlot
from ..report.page.render import chart_sets

TABS = {"tradeoff": "leaderboard", "speed": "speed", "memory": "memory", "quality": "quality"}  # kinds of plots, and tabs of the page
WIDTH, HEIGHT = 320, 240
FULL_CACHE = "full cache"
INK = "#555555"


def plot(view: ReportView, kind: str) -> Any:
    """Return the charts of a kind of :data:`TABS`, one row per model, as one Altair chart.

    Raises UnknownName for another kind, and NothingMeasured if the page has no such chart.
    """
    if kind not in TABS:
        raise unknown("plot", kind, TABS)
    rows = []
    for chapter, charts in zip(view.chapters, chart_sets(view), strict=True):
        drawn = [_drawn(chart, charts) for chart in charts.on_tab(TABS[kind]) if chart.plot is not None]
        if drawn:
            rows.append(alt.hconcat(*drawn, title=chapter.heading))
    if not rows:
        raise NothingMeasured(f"This run has no chart of {kind}.", remedy="Random weights have no quality; see the report for the reasons.")
    return alt.vconcat(*rows).resolve_scale(color="independent")


def _drawn(chart: Chart, charts: ChartSet) -> Any:
    assert chart.plot is not None
    names = {key.index: key.name for key in charts.methods}
    layers = _rows(chart.plot, names) if isinstance(chart.plot, RowPlot) else _points(chart.plot, names)
    height = alt.Step(18) if isinstance(chart.plot, RowPlot) else HEIGHT
    return alt.layer(*layers).properties(title=chart.title, width=WIDTH, height=height)


def _scale(axis: Axis) -> alt.Scale:
    return alt.Scale(domain=[axis.low, axis.high], type="sqrt" if axis.root else "linear", nice=False)


def _colors(marks: Sequence[Any], names: dict[int, str]) -> alt.Color:
    """Return the colors of the page, with the full cache in gray."""
    colors = {names.get(mark.series, FULL_CACHE): mark.color if mark.color.startswith("#") else INK for mark in marks}
    return alt.Color("method:N", scale=alt.Scale(domain=[*colors], range=[*colors.values()]), title=None)


def _points(drawing: XYPlot, names: dict[int, str]) -> list[alt.Chart]:
    """Return marks, their intervals, and lines."""
    x = alt.X("x:Q", title=drawing.x.title, scale=_scale(drawing.x))
    y = alt.Y("y:Q", title=drawing.y.title, scale=_scale(drawing.y))
    marks = [*drawing.points, *(line for line in drawing.lines if line.series >= 0)]
    color, layers = _colors(marks, names), list[alt.Chart]()
    for line in drawing.lines:
        data = pd.DataFrame([(*place, names.get(line.series, FULL_CACHE), number) for number, place in enumerate(line.places)],
                            columns=["x", "y", "method", "order"])
        steps: Any = {"after": "step-after", "before": "step-before"}.get(line.stepped, "linear")
        mark = alt.Chart(data).mark_line(interpolate=steps, strokeDash=[4, 3] if line.dash or line.series < 0 else [1, 0])
        layers.append(mark.encode(x=x, y=y, order="order:Q", color=color if line.series >= 0 else alt.value(INK)))
    points = pd.DataFrame([{
        "x": each.x, "y": each.y, "method": names.get(each.series, FULL_CACHE), "case": each.tip, "ranked": not each.hollow,
        "x_low": (each.across or (each.x, each.x))[0], "x_high": (each.across or (each.x, each.x))[1],
        "y_low": (each.up or (each.y, each.y))[0], "y_high": (each.up or (each.y, each.y))[1]} for each in drawing.points])
    if len(points):
        base = alt.Chart(points).encode(color=color, tooltip="case:N")
        layers += [base.mark_rule().encode(x=alt.X("x_low:Q", title=drawing.x.title, scale=_scale(drawing.x)), x2="x_high:Q", y=y),
                   base.mark_rule().encode(x=x, y=alt.Y("y_low:Q", title=drawing.y.title, scale=_scale(drawing.y)), y2="y_high:Q"),
                   *(base.transform_filter(f"datum.ranked == {str(ranked).lower()}").mark_point(filled=ranked, size=70, opacity=1)
                     .encode(x=x, y=y) for ranked in (False, True))]
    return layers


def _rows(drawing: RowPlot, names: dict[int, str]) -> list[alt.Chart]:
    """Return one bar for each span of a row, the last one in front."""
    spans = pd.DataFrame([{
        "row": span.row, "label": f"{span.row + 1:03} {drawing.labels[span.row]}", "low": span.low, "high": span.high, "case": span.tip,
        "method": names.get(span.series, FULL_CACHE), "opacity": span.opacity} for span in drawing.spans])
    labels = alt.Y("label:N", title=None, sort=None, axis=alt.Axis(labelExpr="slice(datum.label, 4)", labelLimit=220))
    bars = alt.Chart(spans).mark_bar().encode(
        x=alt.X("low:Q", title=drawing.x.title, scale=_scale(drawing.x)), x2="high:Q", y=labels, color=_colors(drawing.spans, names),
        opacity=alt.Opacity("opacity:Q", scale=None, legend=None), tooltip="case:N")
    lines = [alt.Chart(pd.DataFrame({"x": [at]})).mark_rule(strokeDash=[4, 3], color=INK).encode(x="x:Q") for at in drawing.lines]
    return [bars, *lines]
