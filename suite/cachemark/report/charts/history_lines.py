"""Line charts of a group run by run, with marks where a case changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .. import formatting as fmt
from ..view.run_history import CaseHistory, ChangeLike, RunHistory
from .axes import Axis, linear, ranged
from .bars import MOST, first
from .chart import Chart
from .legend import Signs
from .svg import Curve, Point, XYPlot

_TICKS = 12  # of the axis of runs, at most
_SHAPES = {"step": "diamond", "ramp": "triangle", "spread": "square"}  # of the marks of changes


def history(found: RunHistory | None, signs: Signs) -> Iterable[Chart]:
    """The latency of each method over the full cache's, and the full cache's own; changes of the former are marked, and are notes of the
    chart."""
    if found is None:
        return
    if found.arms:
        yield _chart("Latency over the full cache's, run by run", "Latency over the full cache's (×)", found.arms, found, signs,
                     "Lower is faster; 1 is the full cache of the same run.", fmt.times)
    if found.full:
        yield _chart("The full cache's own latency, run by run", "Latency (s)", (found.full,), found, Signs({}, {}),
                     "A change here is one of the machine, its software or the full cache; the ratios hide it.", fmt.seconds)


def _chart(
    title: str, y_title: str, cases: Sequence[CaseHistory], found: RunHistory, signs: Signs, caption: str, text: Callable[[float], str],
) -> Chart:
    """One line for each case with a mark where it changed, a dotted one across where the environment changes."""
    points, lines, shown = [], [], cases[:MOST]
    for case in shown:
        row, places = case.row, [(float(k), value) for k, value in enumerate(case.values) if value is not None]
        lines.append(Curve(tuple(places), signs.colour(row), series=signs.series(row)))
        points += [Point(x, y, signs.colour(row), f"{fmt.plain(row.case.label, 60)} · run {found.names[int(x)]} · {text(y)}",
                         signs.series(row), signs.shape(row)) for x, y in places]
    points += [_mark(case, change, sentence, signs) for case in shown for change, sentence in case.changes]
    y, epochs = linear(y_title, *ranged([point.y for point in points], 0.1)), _epochs(found.fingerprints)
    lines += [Curve(((k - 0.5, y.low), (k - 0.5, y.high)), dash="2 3") for k in epochs]
    last, notes = len(found.names) - 1, tuple(sentence for case in cases for _, sentence in case.changes)
    ticks = tuple((float(k), found.names[k].split(" · ")[0]) for k in range(0, last + 1, 1 + last // _TICKS))
    plot = XYPlot(Axis("Run", -0.3, last + 0.3, ticks), y, tuple(points), tuple(lines))
    table = tuple((case.row.case.label, *(fmt.DASH if value is None else text(value) for value in case.values)) for case in cases)
    said = caption + first(cases)
    said += " Dotted: the numerics fingerprint changes; figures on its two sides are not comparable." if epochs else ""
    said += " Hollow marks: diamond, a step; triangle, the start of a ramp; square, a change of variance." if notes else ""
    return Chart("history", title, said, plot, ("Case", *found.names), table, tuple(case.row.case.key for case in cases), notes=notes)


def _mark(case: CaseHistory, change: ChangeLike, sentence: str, signs: Signs) -> Point:
    return Point(float(change.first), case.values[change.first] or 0.0, "currentColor", fmt.plain(sentence, 300), signs.series(case.row),
                 _SHAPES[change.kind], hollow=True, scale=1.9)


def _epochs(fingerprints: Sequence[str]) -> list[int]:
    """Places at which the environment differs from the one before."""
    return [k for k in range(1, len(fingerprints)) if fingerprints[k] != fingerprints[k - 1]]
