"""The charts of a section: Vega-Lite specifications by Altair, drawn to SVG when the report is made.

SVG and not a script library: it needs no network, no 0.9 MB of JavaScript and no ``eval``, prints, follows the page's theme
through ``currentColor``, and shows without scripts. Hovering is added by the page's own few lines.
"""

from __future__ import annotations

import io
import itertools
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ..units import metric
from . import words
from .interval import Interval
from .row import MASKED, Row, share_of_full
from .section import Section

# Okabe and Ito's colours without black and yellow (each vanishes in one theme), then Tol's muted ones.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999933", "#AA4499", "#44AA99", "#CC6677", "#8C8CD9")
SHAPES = (("circle", "●"), ("square", "■"), ("triangle-up", "▲"), ("diamond", "◆"), ("triangle-down", "▼"), ("cross", "✚"))
_INK = "currentColor"
_WIDTH, _HEIGHT, _BAR = 400, 290, 11
_FIT = alt.AutoSizeParams(type="fit-x", contains="padding")
_SVG = "http://www.w3.org/2000/svg"


@dataclass(frozen=True)
class Key:
    """One entry of the legend: ``sign`` is a colour for a method, a glyph for a budget."""

    name: str
    sign: str
    index: int


@dataclass(frozen=True)
class Chart:
    """A drawing with its own table. ``svg`` is empty where there is nothing to draw; ``empty`` then says why."""

    title: str
    caption: str
    svg: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    empty: str = ""


@dataclass(frozen=True)
class Drawing:
    """All charts of one section with the legend they share."""

    methods: tuple[Key, ...]
    budgets: tuple[Key, ...]
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class _Axis:
    """A quantity of a chart: its title, where its value and interval come from, and how one is written."""

    title: str
    value: Callable[[Row], float | None]
    ends: Callable[[Row], Interval | None]
    text: Callable[[float], str]


def draw(section: Section) -> Drawing:
    """Fidelity against bytes or computation, fidelity against speed-up, and speed over the two halves of an image."""
    methods = tuple(Key(name, COLOURS[k % len(COLOURS)], k) for k, name in enumerate(section.methods))
    ratios = sorted(section.budgets, key=share_of_full, reverse=True)
    budgets = tuple(Key(name, SHAPES[k % len(SHAPES)][1], k) for k, name in enumerate(ratios))
    signs = {key.name: key for key in methods}, {key.name: key for key in budgets}
    cost = _flops if section.paradigm == MASKED else _bytes
    charts = (*_curves(section, signs), cost(section, signs), _speed(section, signs), _halves(section, signs))
    return Drawing(methods, budgets, charts)


_Signs = tuple[dict[str, Key], dict[str, Key]]


def _distance(section: Section) -> _Axis:
    """How far from the full cache: KL or forced distance, or the share of other tokens where KL was not measured. Lower is better."""
    if section.paradigm == MASKED:
        return _Axis("Forced distance to the full cache", lambda row: _mean(row, "forced_distance"),
                     lambda row: row.fidelity.get("forced_distance"), lambda value: words.figure(value, "forced_distance"))
    if any(row.ok and "kl" in row.fidelity for row in section.arms):
        return _Axis("KL to the full cache (nat/token)", lambda row: _mean(row, "kl"), lambda row: row.fidelity.get("kl"),
                     lambda value: words.figure(value, "kl"))

    def differing(row: Row) -> float | None:
        agreement = _mean(row, "token_agreement")
        return None if agreement is None else 1 - agreement

    return _Axis("Tokens unlike the full cache's (share)", differing, lambda row: None, words.percent)


def _mean(row: Row, name: str) -> float | None:
    """The mean over seeds; the full cache is at no distance from itself even where that was not measured."""
    if row.case.role == "baseline":
        return 1.0 if name == "token_agreement" else 0.0
    interval = row.fidelity.get(name)
    return None if interval is None else interval.value


def _flops(section: Section, signs: _Signs) -> Chart:
    full = section.full.median("flops") if section.full and section.full.ok else None

    def value(row: Row) -> float | None:
        computed = row.median("flops")
        return None if computed is None or not full else computed / full

    axis = _Axis("FLOPs of an image (share of full)", value, lambda row: None, words.percent)
    return _scatter("Fidelity against computation", section, axis, True, signs)


def _bytes(section: Section, signs: _Signs) -> Chart:
    most = max((row.median("kv_allocated") or 0.0 for row in section.rows), default=0.0)
    unit, name = next(((1024.0**k, n) for k, n in ((3, "GiB"), (2, "MiB"), (1, "KiB")) if most >= 1024.0**k), (1.0, "B"))

    def value(row: Row) -> float | None:
        held = row.median("kv_allocated")
        return None if held is None else held / unit

    axis = _Axis(f"KV allocated ({name})", value, lambda row: None, lambda x: words.size(x * unit))
    return _scatter("Fidelity against memory", section, axis, True, signs)


def _speed(section: Section, signs: _Signs) -> Chart:
    axis = _Axis("Speed-up over the full cache (×)", lambda row: row.speed_up.value if row.speed_up else None,
                 lambda row: row.speed_up, words.times)
    return _scatter("Fidelity against speed", section, axis, False, signs)


def _scatter(title: str, section: Section, across: _Axis, less: bool, signs: _Signs) -> Chart:
    """Distance from the full cache over ``across``; ``less`` says whether less of it is better."""
    up = _distance(section)
    columns = ("Case", across.title, up.title)
    held = [row for row in section.rows if row.ok and row.timed]
    rows = [row for row in held if across.value(row) is not None and up.value(row) is not None]
    arms = [row for row in rows if row.case.role == "arm"]
    if section.random or not arms:
        why = "Weights are random: there is no fidelity to draw." if section.random else "No method has both figures."
        return Chart(title, "", "", columns, (), why)
    points = [_point(row, across, up, signs) for row in rows]
    table = tuple((row.case.label, across.text(across.value(row) or 0), up.text(up.value(row) or 0)) for row in rows)
    better = "left" if less else "right"
    caption = f"Better is {better} and down. The dashed line joins the cases that no other beats in both."
    return Chart(title, caption, drawing(_plot(points, across.title, up.title, less), title), columns, table)


def _curves(section: Section, signs: _Signs) -> Iterable[Chart]:
    """Quality and fidelity against budget, a line for each method, where one was measured at three budgets or more."""
    if all(len({row.case.budget for row in section.arms if row.method == name}) < 3 for name in section.methods) or section.random:
        return
    by, up = section.ranked_by, _distance(section)
    if by:
        yield _curve("Quality against budget", section, signs, _Axis(
            metric(by).title, lambda row: row.quality[by].value if by in row.quality else None, lambda row: row.quality.get(by),
            lambda value: words.figure(value, by)))
    yield _curve("Fidelity against budget", section, signs, up)


def _curve(title: str, section: Section, signs: _Signs, up: _Axis) -> Chart:
    """Lower is better in both. The full cache is a line across."""
    rows = [row for row in section.arms if row.ok and up.value(row) is not None]
    columns = ("Case", "Budget", up.title)
    share = _Axis("Budget (share of full)", lambda row: share_of_full(row.case.budget), lambda row: None, words.percent)
    table = tuple((row.case.label, row.case.budget, up.text(up.value(row) or 0)) for row in rows)
    points = [{**_point(row, share, up, signs), "hollow": bool(row.unranked)} for row in rows]
    level = up.value(section.full) if section.full and section.full.ok else None
    caption = "Down is better. The dashed line is the full cache. Hollow: not ranked, because nothing is left to compare."
    return Chart(title, caption, drawing(_lines(points, level, share.title, up.title), title), columns, table)


def _lines(points: list[dict[str, Any]], level: float | None, x_title: str, y_title: str) -> Any:
    top = max(max(p["y2"] for p in points), level or 0.0) or 1e-6
    budgets = sorted({p["x"] for p in points})
    x = alt.X("x:Q", title=x_title, scale=alt.Scale(domain=[0, 1.08 * budgets[-1]], nice=False),
              axis=alt.Axis(values=budgets, format=".3~g", labelOverlap=True))
    y = alt.Y("y:Q", title=y_title, scale=alt.Scale(type="sqrt", domain=[0, 1.06 * top], nice=False),
              axis=alt.Axis(values=_ticks(top), format="~g"))
    data = alt.Data(values=points)
    lines = alt.Chart(data).mark_line(strokeWidth=1.5, opacity=0.7, aria=False).encode(x=x, y=y, color=_own(), detail="colour:N")
    ends = alt.Chart(data).mark_rule(strokeWidth=1.2, aria=False, opacity=0.6).encode(x=x, y="y1:Q", y2="y2:Q", color=_own())
    solid = alt.Chart(data).transform_filter("!datum.hollow").mark_point(filled=True, size=55, opacity=1, strokeWidth=0)
    open_ = alt.Chart(data).transform_filter("datum.hollow").mark_point(filled=False, size=55, opacity=1, strokeWidth=1.5)
    marks = [kind.encode(x=x, y=y, color=_own(), description="tip:N") for kind in (solid, open_)]
    across = [] if level is None else [alt.Chart(alt.Data(values=[{"level": level}])).mark_rule(
        strokeDash=[4, 3], strokeWidth=1, color=_INK, opacity=0.6, aria=False).encode(y="level:Q")]
    return alt.layer(*across, ends, lines, *marks).properties(width=_WIDTH, height=_HEIGHT, autosize=_FIT)


def _point(row: Row, across: _Axis, up: _Axis, signs: _Signs) -> dict[str, Any]:
    x, y = across.value(row) or 0.0, up.value(row) or 0.0
    wide, high = across.ends(row) if row.case.role == "arm" else None, up.ends(row) if row.case.role == "arm" else None
    method = signs[0].get(row.method)
    budget = signs[1].get(row.case.budget)
    index = method.index if method else -1
    tip = f"{words.plain(row.case.label, 60)} · {across.title}: {across.text(x)} · {up.title}: {up.text(y)}"
    return {
        "x": x, "y": y, "x1": wide.low if wide else x, "x2": wide.high if wide else x, "y1": high.low if high else y,
        "y2": high.high if high else y, "colour": method.sign if method else _INK, "tip": f"{index}|{tip}",
        "shape": SHAPES[budget.index % len(SHAPES)][0] if budget and method else "stroke", "full": method is None,
    }


def _front(points: Sequence[dict[str, Any]], less: bool) -> list[dict[str, Any]]:
    """The points that no other beats in both directions, from left to right."""
    sign = 1 if less else -1

    def beaten(p: dict[str, Any]) -> bool:
        return any(sign * q["x"] <= sign * p["x"] and q["y"] <= p["y"] and (q["x"], q["y"]) != (p["x"], p["y"]) for q in points)

    kept = {(p["x"], p["y"]) for p in points if not beaten(p)}
    return [{"x": x, "y": y} for x, y in sorted(kept)]


def _plot(points: list[dict[str, Any]], x_title: str, y_title: str, less: bool) -> Any:
    low, high = min(p["x1"] for p in points), max(p["x2"] for p in points)
    domain = [0, 1.08 * high] if less else [low - 0.06 * (high - low or 1), high + 0.06 * (high - low or 1)]
    top = max(p["y2"] for p in points) or 1e-6
    x = alt.X("x:Q", title=x_title, scale=alt.Scale(domain=domain, nice=False, zero=False), axis=alt.Axis(tickCount=6))
    y = alt.Y("y:Q", title=y_title, scale=alt.Scale(type="sqrt", domain=[0, 1.06 * top], nice=False),
              axis=alt.Axis(values=_ticks(top), format="~g"))
    data = alt.Data(values=points)
    front = alt.Chart(alt.Data(values=_front(points, less))).mark_line(
        interpolate="step-after" if less else "step-before", strokeDash=[4, 3], strokeWidth=1, color=_INK, opacity=0.55, aria=False,
    ).encode(x=x, y=y)
    rules = [alt.Chart(data).mark_rule(strokeWidth=1.4, aria=False, opacity=0.8).encode(x=x, y="y1:Q", y2="y2:Q", color=_own()),
             alt.Chart(data).mark_rule(strokeWidth=1.4, aria=False, opacity=0.8).encode(x="x1:Q", x2="x2:Q", y=y, color=_own())]
    marks = alt.Chart(data).transform_filter("!datum.full").mark_point(filled=True, size=85, opacity=1, strokeWidth=0).encode(
        x=x, y=y, color=_own(), shape=alt.Shape("shape:N", scale=None), description="tip:N")
    full = alt.Chart(data).transform_filter("datum.full")
    ring = full.mark_point(filled=False, shape="circle", size=110, strokeWidth=2, color=_INK).encode(x=x, y=y, description="tip:N")
    name = full.mark_text(text="full", dy=-13, fontWeight="bold", color=_INK, aria=False).encode(x=x, y=y)
    return alt.layer(front, *rules, marks, ring, name).properties(width=_WIDTH, height=_HEIGHT, autosize=_FIT)


def _ticks(top: float) -> list[float]:
    """Ticks of a square-root axis: evenly spread on the page, each one digit long."""
    wanted = [top * (k / 5) ** 2 for k in range(1, 6)]
    return [0.0, *dict.fromkeys(float(f"{value:.1g}") for value in wanted if float(f"{value:.1g}") <= 1.06 * top)]


def _own() -> alt.Color:
    """The colour that a datum names itself: a user's text never reaches a scale."""
    return alt.Color("colour:N", scale=None)


def _halves(section: Section, signs: _Signs) -> Chart:
    names = ("tokens_per_s_first", "tokens_per_s_last")
    title, columns = "Tokens per second, first and last half", ("Case", "First half", "Last half")
    rows = [row for row in section.rows if row.ok and row.median(names[0]) is not None and row.median(names[1]) is not None]
    if not rows:
        return Chart(title, "", "", columns, (), "Speed over the halves was not measured.")
    bars = [_bar(k, row, half, name, signs) for k, row in enumerate(rows) for half, name in enumerate(names)]
    table = tuple((row.case.label, *(words.figure(row.median(name) or 0.0, name) for name in names)) for row in rows)
    caption = "Pale: first half. Full: last half. Medians; longer is better."
    return Chart(title, caption, drawing(_bars(bars, [words.plain(row.case.label, 22) for row in rows]), title), columns, table)


def _bar(position: int, row: Row, half: int, name: str, signs: _Signs) -> dict[str, Any]:
    method = signs[0].get(row.method)
    value = row.median(name) or 0.0
    tip = f"{words.plain(row.case.label, 60)} · {metric(name).title}: {words.with_unit(value, name)}"
    return {"row": position, "half": half, "value": value, "pale": 1.0 if half else 0.45,
            "colour": method.sign if method else _INK, "tip": f"{method.index if method else -1}|{tip}"}


def _bars(bars: list[dict[str, Any]], labels: list[str]) -> alt.Chart:
    """Labels come from a list by position, so that two rows of one name stay two rows."""
    named = [{**bar, "name": f"{bar['row']:04d}{labels[bar['row']]}"} for bar in bars]
    return alt.Chart(alt.Data(values=named)).mark_bar(height=_BAR - 2).encode(
        y=alt.Y("name:N", title=None, sort=None, scale=alt.Scale(paddingInner=0.25),
                axis=alt.Axis(labelExpr="slice(datum.label, 4)", labelLimit=170, grid=False, ticks=False, domain=False, labelPadding=8)),
        yOffset=alt.YOffset("half:O", scale=alt.Scale(paddingInner=0)),
        x=alt.X("value:Q", title="Tokens per second", scale=alt.Scale(zero=True, nice=True), axis=alt.Axis(tickCount=5)),
        color=_own(), opacity=alt.Opacity("pale:Q", scale=None), description="tip:N",
    ).properties(width=_WIDTH, height=alt.Step(_BAR), autosize=_FIT)


def drawing(chart: Any, title: str) -> str:
    """Draw a chart and make the drawing part of the page: own namespace dropped, theme colours, data for hovering."""
    axis = {"labelColor": _INK, "titleColor": _INK, "tickColor": _INK, "domainColor": _INK, "gridColor": _INK, "gridOpacity": 0.12,
            "domainOpacity": 0.4, "tickOpacity": 0.4, "labelFontSize": 11, "titleFontSize": 11.5, "titleFontWeight": "normal",
            "labelOpacity": 0.85, "titleOpacity": 0.85, "titlePadding": 9, "labelFlush": False}
    styled = chart.configure(font="sans-serif", background="transparent").configure_view(strokeOpacity=0).configure_axis(**axis)
    drawn = io.StringIO()
    styled.save(drawn, format="svg")
    root = ET.fromstring(drawn.getvalue())
    for mark in _marks(root):
        series, _, tip = mark.attrib.pop("aria-label").partition("|")
        mark.set("data-series", series)
        ET.SubElement(mark, f"{{{_SVG}}}title").text = tip
    for name in ("width", "height", "version", "class"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", f"{title}; the table below the chart holds its figures")
    ET.register_namespace("", _SVG)
    return ET.tostring(root, encoding="unicode")


def _marks(root: ET.Element) -> Iterable[ET.Element]:
    """Drawn data: what carries one of our descriptions."""
    described = itertools.chain(root.iter(f"{{{_SVG}}}path"), root.iter(f"{{{_SVG}}}line"))
    return [mark for mark in described if "|" in mark.get("aria-label", "")]
