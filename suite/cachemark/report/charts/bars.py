"""Bar charts: parts of time and memory, distributions over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ...analysis.case_group import CaseGroup
from ...analysis.report_row import MASKED, ReportRow
from ...core import formatting as fmt
from ...core.units import KV, PEAK, PIXELS, STATE, TIME, TOKEN_TIME, WORKSPACE, compared_tokens, metric, scores
from .chart import INK, MOST, Chart, Signs, first, tip
from .svg import RowPlot, Span, linear, ranged

_BOX = (5, 25, 50, 75, 95)  # percentiles of a distribution's row: thin line, box, tick


def _labels(rows: Sequence[ReportRow]) -> tuple[str, ...]:
    return tuple(row.label for row in rows[:MOST])


def _bars(rows: Sequence[ReportRow], title: str, spans: Sequence[Span], parts: Mapping[str, float]) -> RowPlot:
    axis = linear(title, 0.0, 1.04 * max(span.high for span in spans))
    return RowPlot(_labels(rows), axis, tuple(spans), parts=tuple(parts.items()))


def phases(group: CaseGroup, signs: Signs) -> Iterable[Chart]:
    """Yield the chart of time per batch: tokens, and image decoding."""
    rows = [row for row in group.rows if row.ok and row.median(TIME) and row.median(TOKEN_TIME) is not None]
    if not rows:
        return
    tokens = [row.median(TOKEN_TIME) or 0.0 for row in rows]
    others_ = [max((row.median(TIME) or 0.0) - made, 0.0) for row, made in zip(rows, tokens, strict=True)]
    parts = list(zip(tokens, others_, strict=True))
    titles = {"Tokens": 1.0, "Decode + other": 0.4}
    spans = _stacked(rows, parts, titles, signs, fmt.seconds)
    figures = ((fmt.seconds(made), fmt.seconds(other), fmt.percent(1 - made / (made + other))) for made, other in parts)
    caption = "From the left: token generation, then image decoding and other work. Medians." + first(rows)
    yield Chart.of_cases("speed", "Time per batch, by part", caption, _bars(rows, "Seconds per batch", spans, titles),
                         (*titles, "Decode + other, %"), rows, figures)


def memory(group: CaseGroup, signs: Signs) -> Iterable[Chart]:
    """Yield the chart of memory by part: keys and values, workspace, state."""
    title = "Memory by part"
    rows = [row for row in group.rows if row.ok and row.median(KV) is not None]
    if not rows:
        return
    parts = []
    for row in rows:
        workspace = row.median(WORKSPACE) or 0.0
        parts.append((max((row.median(KV) or 0.0) - workspace, 0.0), workspace, row.median(STATE) or 0.0))
    unit, name = fmt.binary(max(map(sum, parts)))
    titles = {"Keys and values": 1.0, "Workspace": 0.6, "State": 0.3}
    spans = _stacked(rows, parts, titles, signs, fmt.size, unit)
    if not spans:
        yield Chart("memory", title, empty="Nothing is kept between steps.")
        return
    figures = ([fmt.size(size) for size in (*sizes, sum(sizes), row.median(PEAK) or 0.0)]
               for row, sizes in zip(rows, parts, strict=True))
    caption = "From the left: keys and values, workspace shared by layers, method state." + first(rows)
    yield Chart.of_cases("memory", title, caption, _bars(rows, f"Peak memory of cache and state ({name})", spans, titles),
                         (*titles, "Total", "Peak memory"), rows, figures)


def _stacked(
    rows: Sequence[ReportRow], parts: Sequence[tuple[float, ...]], titles: Mapping[str, float], signs: Signs,
    text: Callable[[float], str], unit: float = 1.0,
) -> list[Span]:
    """Return stacked bars in ``unit``; ``titles`` maps each part to its opacity."""
    spans = []
    for k, (row, sizes) in enumerate(zip(rows[:MOST], parts, strict=False)):
        at = 0.0
        for (title, opacity), size in zip(titles.items(), sizes, strict=True):
            if size:
                spans.append(Span(k, at / unit, (at + size) / unit, signs.color(row), tip(row, f"{title}: {text(size)}"),
                                  signs.series(row), opacity))
            at += size
    return spans


def spreads(group: CaseGroup, signs: Signs) -> Iterable[Chart]:
    """Yield distributions over seeds of fidelity and of paired quality differences."""
    if group.random:
        return
    for name in (compared_tokens(masked=group.paradigm == MASKED, forced=True), PIXELS):
        rows = [row for row in (*group.candidates, *group.references) if row.ok and len(row.outcome.samples.get(name, ())) > 1]
        if any(row.case.role == "candidate" for row in rows):
            values = [list(row.outcome.samples[name]) for row in rows]
            yield _spread(f"{metric(name).title} over seeds", name, rows, values, signs, "")
    yield from _paired(group, signs)


def _paired(group: CaseGroup, signs: Signs) -> Iterable[Chart]:
    for name in scores():
        full = group.full.outcome.samples.get(name, ()) if group.full else ()
        rows = [row for row in group.candidates if row.ok and len(row.outcome.samples.get(name, ())) == len(full) > 1]
        if rows:
            values = [[mine - its for mine, its in zip(row.outcome.samples[name], full, strict=True)] for row in rows]
            title = f"{metric(name).title}, paired difference from the full cache"
            visible = np.any([np.percentile(seeds, _BOX) for seeds in values])
            yield _spread(title, name, rows, values, signs, "Dashed: no difference. ") if visible else _no_difference(title, values)


def _no_difference(title: str, values: Sequence[Sequence[float]]) -> Chart:
    """Return the words for paired differences that no distribution can show."""
    same = min(sum(value == 0 for value in seeds) / len(seeds) for seeds in values)
    where = "in any image" if same == 1 else f"in at least {fmt.percent(same)} of the images of each method"
    return Chart("quality", title, empty=f"No difference {where}.")


def _spread(title: str, name: str, rows: Sequence[ReportRow], values: Sequence[Sequence[float]], signs: Signs, lead: str) -> Chart:
    percentiles = [np.percentile(seeds, _BOX).tolist() for seeds in values]
    share = metric(name).unit == "share"
    scale = 100.0 if share else 1.0
    spans: list[Span] = []
    for k, (row, (least, low, middle, high, most)) in enumerate(zip(rows[:MOST], percentiles, strict=False)):
        p5, p25, p75, p95 = (fmt.metric_value(value, name) for value in (least, low, high, most))
        text = tip(row, f"median: {fmt.with_unit(middle, name)}", f"25–75 %: {p25} to {p75}", f"5–95 %: {p5} to {p95}")
        color, series = signs.color(row), signs.series(row)
        spans += [Span(k, scale * least, scale * most, color, text, series, 0.5, thick=0.1),
                  Span(k, scale * low, scale * high, color, text, series, 0.55, thick=0.6),
                  Span(k, scale * middle, scale * middle, INK, text, series, thick=0.75)]
    low, high = ranged([scale * end for ends in percentiles for end in (ends[0], ends[-1])], 0.04)
    unit, quantity = "%" if share else metric(name).unit, metric(name).title
    if lead:  # a difference of percentages is in points
        unit, quantity = "points" if share else unit, f"{quantity}, difference"
    x = linear(f"{quantity} ({unit})" if unit else quantity, low, high)
    figures = ((*(fmt.metric_value(end, name) for end in ends), str(len(seeds))) for ends, seeds in zip(percentiles, values, strict=True))
    caption = f"{lead}Box: 25–75 %; whiskers: 5–95 %; tick: median.{first(rows)}"
    plot = RowPlot(_labels(rows), x, tuple(spans), lines=(0.0,) if lead else ())
    return Chart.of_cases("quality", title, caption, plot, ("5 %", "25 %", "Median", "75 %", "95 %", "Seeds"), rows, figures)
