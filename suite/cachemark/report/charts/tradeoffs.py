"""Charts that set two quantities of each case against one another: fidelity against cost, quality against budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...core.spec import shown_share
from ...core.units import metric
from ...stats.bootstrap import Interval
from .. import formatting as fmt
from ..view.case_group import CaseGroup
from ..view.report_row import MASKED, ReportRow, share_of_full
from .bars import keys
from .chart import Chart, Signs
from .svg import Axis, Curve, Point, XYPlot, linear, ranged, rooted


@dataclass(frozen=True)
class _Quantity:
    """A quantity of a case: its title, where its value and interval come from, and how one is written."""

    title: str
    value: Callable[[ReportRow], float | None]
    ends: Callable[[ReportRow], Interval | None]
    text: Callable[[float], str]


def _distance(group: CaseGroup) -> _Quantity:
    """The distance from the full cache: KL or forced distance, or the share of other tokens where KL was not measured. Lower is better."""
    if group.paradigm == MASKED:
        return _Quantity("Forced distance to the full cache", lambda row: _mean(row, "forced_distance"),
                         lambda row: row.fidelity.get("forced_distance"), lambda value: fmt.figure(value, "forced_distance"))
    if any(row.ok and "kl" in row.fidelity for row in group.arms):
        return _Quantity("KL to the full cache (nat/token)", lambda row: _mean(row, "kl"), lambda row: row.fidelity.get("kl"),
                         lambda value: fmt.figure(value, "kl"))

    def differing(row: ReportRow) -> float | None:
        agreement = _mean(row, "token_agreement")
        return None if agreement is None else 1 - agreement

    return _Quantity("Tokens that differ from the full cache's (share)", differing, lambda row: None, fmt.percent)


def _mean(row: ReportRow, name: str) -> float | None:
    """The mean over seeds; the full cache is at no distance from itself even where that was not measured."""
    if row.case.role == "baseline":
        return 1.0 if name == "token_agreement" else 0.0
    interval = row.fidelity.get(name)
    return None if interval is None else interval.value


def against_cost(group: CaseGroup, signs: Signs) -> Chart:
    """Fidelity against computation in a masked model, elsewhere against memory."""
    return (_against_flops if group.paradigm == MASKED else _against_bytes)(group, signs)


def _against_flops(group: CaseGroup, signs: Signs) -> Chart:
    full = group.full.median("flops") if group.full and group.full.ok else None

    def value(row: ReportRow) -> float | None:
        computed = row.median("flops")
        return None if computed is None or not full else computed / full

    across = _Quantity("FLOPs of an image (share of full)", value, lambda row: None, fmt.percent)
    return _scatter("Fidelity against computation", group, across, True, signs)


def _against_bytes(group: CaseGroup, signs: Signs) -> Chart:
    most = max((row.median("kv_allocated") or 0.0 for row in group.rows), default=0.0)
    unit, name = fmt.binary(most)

    def value(row: ReportRow) -> float | None:
        allocated = row.median("kv_allocated")
        return None if allocated is None else allocated / unit

    across = _Quantity(f"KV allocated ({name})", value, lambda row: None, lambda x: fmt.size(x * unit))
    return _scatter("Fidelity against memory", group, across, True, signs)


def against_speed(group: CaseGroup, signs: Signs) -> Chart:
    """Fidelity against speed-up."""
    across = _Quantity("Speed-up over the full cache (×)", lambda row: row.speed_up.value if row.speed_up else None,
                       lambda row: row.speed_up, fmt.times)
    return _scatter("Fidelity against speed", group, across, False, signs)


def _scatter(title: str, group: CaseGroup, across: _Quantity, less: bool, signs: Signs) -> Chart:
    """Distance from the full cache over ``across``; ``less`` says whether less of it is better."""
    up = _distance(group)
    columns = ("Case", across.title, up.title)
    rows = [row for row in group.rows if row.ok and row.timed and across.value(row) is not None and up.value(row) is not None]
    if group.random or not any(row.case.role == "arm" for row in rows):
        why = "Weights are random, so there is no fidelity to show." if group.random else "No method has both values."
        return Chart("leaderboard", title, "", None, columns, (), empty=why)
    points = tuple(_point(row, across, up, signs) for row in rows)
    table = tuple((row.case.label, across.text(across.value(row) or 0), up.text(up.value(row) or 0)) for row in rows)
    caption = (f"Lower {'left' if less else 'right'} is better. Dashed: the Pareto front, the cases that no other beats in both.")
    return Chart("leaderboard", title, caption, _plane(points, across.title, up.title, less), columns, table, keys(rows))


def curves(group: CaseGroup, signs: Signs) -> Iterable[Chart]:
    """Quality and fidelity against budget, a line for each method, where one was measured at three budgets or more."""
    if group.random or all(len({row.case.budget for row in group.arms if row.method == name}) < 3 for name in group.methods):
        return
    by, up = group.ranked_by, _distance(group)
    if by:
        yield _curve("Quality against budget", group, signs, _Quantity(
            metric(by).title, lambda row: row.quality[by].value if by in row.quality else None, lambda row: row.quality.get(by),
            lambda value: fmt.figure(value, by)))
    yield _curve("Fidelity against budget", group, signs, up)


def _curve(title: str, group: CaseGroup, signs: Signs, up: _Quantity) -> Chart:
    """Lower is better in both. The full cache is a line across."""
    rows = [row for row in group.arms if row.ok and up.value(row) is not None]
    share = _Quantity("Budget (share of full)", lambda row: share_of_full(row.case.budget), lambda row: None, fmt.percent)
    table = tuple((row.case.label, shown_share(row.case.budget), up.text(up.value(row) or 0)) for row in rows)
    points = tuple(_point(row, share, up, signs) for row in rows)
    level = up.value(group.full) if group.full and group.full.ok else None
    budgets = sorted({point.x for point in points})
    x = Axis(share.title, 0.0, 1.08 * budgets[-1], tuple((budget, f"{budget:.3g}") for budget in budgets))
    y = rooted(up.title, max(_top(points), level or 0.0))
    paths: dict[int, list[Point]] = {}
    for point in points:
        paths.setdefault(point.series, []).append(point)
    lines = [Curve(tuple(sorted((p.x, p.y) for p in path)), path[0].colour, series=k) for k, path in paths.items()]
    full = [] if level is None else [Curve(((0.0, level), (x.high, level)), dash="4 3")]
    caption = "Lower is better. Dashed: the full cache. Hollow: not ranked."
    return Chart("quality", title, caption, XYPlot(x, y, points, (*full, *lines)), ("Case", "Budget", up.title), table, keys(rows))


def _point(row: ReportRow, across: _Quantity, up: _Quantity, signs: Signs) -> Point:
    x, y = across.value(row) or 0.0, up.value(row) or 0.0
    arm = row.case.role == "arm"
    wide, high = across.ends(row) if arm else None, up.ends(row) if arm else None
    tip = f"{fmt.plain(row.case.label, 60)} · {across.title}: {across.text(x)} · {up.title}: {up.text(y)}"
    return Point(x, y, signs.colour(row), tip, signs.series(row), signs.shape(row), (wide.low, wide.high) if wide else None,
                 (high.low, high.high) if high else None, hollow=not arm or bool(row.unranked), name="" if arm else "full")


def front(points: Sequence[tuple[float, float]], less: bool) -> list[tuple[float, float]]:
    """The places that no other beats in both directions, from left to right; lower is always better upwards."""
    sign = 1 if less else -1
    kept, lowest = [], float("inf")
    for x, y in sorted(set(points), key=lambda p: (sign * p[0], p[1])):
        if y < lowest:
            kept.append((x, y))
            lowest = y
    return sorted(kept)


def _top(points: Sequence[Point]) -> float:
    return max(max(point.y, point.up[1] if point.up else 0.0) for point in points)


def _plane(points: tuple[Point, ...], x_title: str, y_title: str, less: bool) -> XYPlot:
    ends = [end for point in points for end in (point.x, *(point.across or ()))]
    low, high = ranged(ends)
    x = linear(x_title, 0.0 if less else low, 1.08 * max(ends) if less else high, count=6)
    line = Curve(tuple(front([(point.x, point.y) for point in points], less)), dash="4 3", stepped="after" if less else "before")
    return XYPlot(x, rooted(y_title, _top(points)), points, (line,))
