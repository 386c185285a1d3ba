"""Scatter charts and curves: fidelity against cost, quality against budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...analysis.case_group import CaseGroup
from ...analysis.report_row import MASKED, ReportRow, share_of_full
from ...core import formatting as fmt
from ...core.spec import shown_share
from ...core.units import FLOPS, KV, compared_tokens, metric
from ...stats.intervals import Interval
from .chart import Chart, Signs, over, tip
from .svg import Axis, Curve, Point, XYPlot, linear, ranged, rooted


@dataclass(frozen=True)
class _Quantity:
    title: str
    of: Callable[[ReportRow], Interval | float | None]
    text: Callable[[float], str]

    def value(self, row: ReportRow) -> float | None:
        value = self.of(row)
        return value.value if isinstance(value, Interval) else value

    def ends(self, row: ReportRow) -> tuple[float, float] | None:
        value = self.of(row)
        return (value.low, value.high) if isinstance(value, Interval) and value.stated and row.case.role == "candidate" else None


def _distance(group: CaseGroup) -> _Quantity:
    """Return the distance from the full cache: KL, forced distance, or else the fraction of other tokens."""
    masked = group.paradigm == MASKED
    name = compared_tokens(masked=masked, forced=True)
    title = f"{metric(name).title} to the full cache{f' ({unit})' if (unit := metric(name).unit) else ''}"

    def mean(row: ReportRow) -> Interval | float | None:
        return 0.0 if row.case.role == "baseline" else row.fidelity.get(name)

    def differing(row: ReportRow) -> float | None:
        agreement = row.fidelity.get(compared_tokens(masked=masked))
        return 0.0 if row.case.role == "baseline" else None if agreement is None else 1 - agreement.value

    if masked or any(row.ok and name in row.fidelity for row in group.candidates):
        return _Quantity(title, mean, lambda value: fmt.metric_value(value, name))
    return _Quantity("Tokens that differ from the full cache's (share)", differing, fmt.percent)


def against_cost(group: CaseGroup, signs: Signs) -> Chart:
    """Return fidelity against FLOPs (masked models) or memory."""
    if group.paradigm == MASKED:
        total = group.full.median(FLOPS) if group.full and group.full.ok else None
        flops = _Quantity("FLOPs of an image (share of full)", lambda row: over(row.median(FLOPS), total), fmt.percent)
        return _scatter("Fidelity against computation", group, flops, True, signs)
    unit, name = fmt.binary(max((row.median(KV) or 0.0 for row in group.rows), default=0.0))
    size = _Quantity(f"KV allocated ({name})", lambda row: over(row.median(KV), unit), lambda x: fmt.size(x * unit))
    return _scatter("Fidelity against memory", group, size, True, signs)


def against_speed(group: CaseGroup, signs: Signs) -> Chart:
    """Return fidelity against speedup."""
    across = _Quantity("Speedup (×)", lambda row: row.speedup, fmt.times)
    return _scatter("Fidelity against speed", group, across, False, signs)


def _scatter(title: str, group: CaseGroup, across: _Quantity, less: bool, signs: Signs) -> Chart:
    up = _distance(group)
    rows = [row for row in group.rows if row.ok and row.timed and across.value(row) is not None and up.value(row) is not None]
    if group.random or not any(row.case.role == "candidate" for row in rows):
        why = "Weights are random." if group.random else "No method has both values."
        return Chart("leaderboard", title, empty=why)
    points = tuple(_point(row, across, up, signs) for row in rows)
    caption = f"Lower {'left' if less else 'right'} is better. Dashed: Pareto front of ranked cases. Hollow: not ranked."
    able = [(point.x, point.y) for row, point in zip(rows, points, strict=True) if not row.unranked]
    ends = [end for point in points for end in (point.x, *(point.across or ()))]
    low, high = ranged(ends)
    x = linear(across.title, 0.0 if less else low, 1.08 * max(ends) if less else high, count=6)
    line = Curve(tuple(front(able, less)), dash="4 3", stepped="after" if less else "before")
    plot = XYPlot(x, rooted(up.title, _top(points)), points, (line,))
    figures = ([of.text(of.value(row) or 0) for of in (across, up)] for row in rows)
    return Chart.of_cases("leaderboard", title, caption, plot, (across.title, up.title), rows, figures)


def curves(group: CaseGroup, signs: Signs) -> Iterable[Chart]:
    """Yield quality and fidelity against budget for methods with at least three budgets."""
    by = group.ranked_by
    quality = [_Quantity(metric(by).title, lambda row: row.quality.get(by), lambda value: fmt.metric_value(value, by))] if by else []
    drawn = (("Quality against budget", quality), ("Fidelity against budget", [_distance(group)]))
    for title, up in ((title, up) for title, ups in drawn if not group.random for up in ups):
        rows = [row for row in group.candidates if row.ok and up.value(row) is not None]
        if any(len({row.case.stated_budget for row in rows if row.method == name}) > 2 for name in group.methods):
            yield _curve(title, group, rows, signs, up)


def _curve(title: str, group: CaseGroup, rows: Sequence[ReportRow], signs: Signs, up: _Quantity) -> Chart:
    share = _Quantity("Budget (share of full)", lambda row: share_of_full(row.case.stated_budget), fmt.percent)
    points = tuple(_point(row, share, up, signs) for row in rows)
    level = up.value(group.full) if group.full and group.full.ok else None
    budgets = sorted({point.x for point in points})
    x = Axis(share.title, 0.0, 1.08 * budgets[-1], tuple((budget, f"{budget:.3g}") for budget in budgets))
    y = rooted(up.title, max(_top(points), level or 0.0))
    paths: dict[int, list[Point]] = {}
    for point in points:
        paths.setdefault(point.series, []).append(point)
    lines = [Curve(tuple(sorted((p.x, p.y) for p in path)), path[0].color, series=k) for k, path in paths.items()]
    full = [] if level is None else [Curve(((0.0, level), (x.high, level)), dash="4 3")]
    caption = "Lower is better. Dashed: the full cache. Hollow: not ranked."
    figures = ((shown_share(row.case.stated_budget), up.text(up.value(row) or 0)) for row in rows)
    return Chart.of_cases("quality", title, caption, XYPlot(x, y, points, (*full, *lines)), ("Budget", up.title), rows, figures)


def _point(row: ReportRow, across: _Quantity, up: _Quantity, signs: Signs) -> Point:
    x, y, candidate = across.value(row) or 0.0, up.value(row) or 0.0, row.case.role == "candidate"
    label = tip(row, f"{across.title}: {across.text(x)}", f"{up.title}: {up.text(y)}")
    return Point(x, y, signs.color(row), label, signs.series(row), signs.shape(row), across.ends(row), up.ends(row),
                 hollow=not candidate or bool(row.unranked), name="" if candidate else "full")


def front(points: Sequence[tuple[float, float]], less: bool) -> list[tuple[float, float]]:
    """Return the Pareto front from left to right; lower is better vertically."""
    sign = 1 if less else -1
    places, lowest = [], float("inf")
    for x, y in sorted(set(points), key=lambda p: (sign * p[0], p[1])):
        if y < lowest:
            places.append((x, y))
            lowest = y
    return sorted(places)


def _top(points: Sequence[Point]) -> float:
    return max(max(point.y, point.up[1] if point.up else 0.0) for point in points)
