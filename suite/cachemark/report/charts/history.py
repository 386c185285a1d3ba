"""Runs of one plan on one machine class over time, each case against the full cache of its own run, and where it changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...core.result import Environment, Outcome
from .. import formatting as words
from ..view.row import Row
from ..view.section import Section, sections
from .bars import MOST as CASES
from .chart import Chart, Signs, signs
from .drawing import Axis, Curve, Field, Point, linear, ranged

MOST = 60  # runs that a chart shows
_TICKS = 12  # of the axis of runs, at most
_SHAPES = {"step": "diamond", "ramp": "triangle", "spread": "square"}  # of the marks of changes


class HistoryRun(Protocol):
    """What a history needs of a run."""

    @property
    def id(self) -> int: ...
    @property
    def started(self) -> str: ...
    @property
    def environment(self) -> Environment: ...


class ChangeLike(Protocol):
    """What a history needs of a ``regress.history.Change``."""

    @property
    def kind(self) -> str: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def size(self) -> float: ...
    @property
    def p(self) -> float: ...
    @property
    def gates(self) -> bool: ...


Trend = Callable[[Sequence[float], Sequence[str], str], Sequence[ChangeLike]]
"""Finds the changes of log costs, one per run and NaN where none was measured, given the environment of each run and the device class."""


@dataclass(frozen=True)
class HistoryNight:
    """One run with what came out of it."""

    run: HistoryRun
    outcomes: Sequence[Outcome]

    @property
    def name(self) -> str:
        return f"{words.plain(self.run.id, 12)} · {words.plain(str(self.run.started)[:10])}"


@dataclass(frozen=True)
class _Followed:
    """The runs of a section's cell, and the rows of each by case."""

    names: tuple[str, ...]
    fingerprints: tuple[str, ...]
    rows: tuple[dict[str, Row], ...]


def history(
    section: Section, nights: Sequence[HistoryNight], trend: Trend | None = None, parts: Sequence[Section] = ()
) -> tuple[Chart, ...]:
    """Latencies run by run, oldest first: of each method over the full cache's of the same run, in which a slower day cancels, and of the
    full cache itself, which shows what that ratio hides. Changes of the former that ``trend`` finds are marked, and told as notes of
    the chart. Empty where the cell was measured once. ``parts`` are all sections of the report: a method has one colour in them."""
    held = [night for night in nights if any(o.case.cell == section.case.cell for o in night.outcomes)][-MOST:]
    if len(held) < 2:
        return ()
    followed = _Followed(tuple(night.name for night in held), tuple(night.run.environment.fingerprint for night in held),
                         tuple(_rows(section, night) for night in held))
    shown = signs(section, parts)
    return (*_relative(section, followed, shown, trend), *_absolute(section, followed))


def _rows(section: Section, night: HistoryNight) -> dict[str, Row]:
    found = sections([o for o in night.outcomes if o.case.cell == section.case.cell and o.case.role in ("arm", "baseline")])
    return {row.case.key: row for part in found for row in part.rows}


def _relative(section: Section, followed: _Followed, shown: Signs, trend: Trend | None) -> Iterable[Chart]:
    series = {row.case.key: (row, [_cost(night.get(row.case.key)) for night in followed.rows]) for row in section.arms}
    series = {key: held for key, held in series.items() if any(value is not None for value in held[1])}
    if series:
        yield _chart("Latency over the full cache's, run by run", "Latency over the full cache's (×)", series, followed, shown,
                     "Lower is faster; 1 is the full cache of the same run.", words.times, _found(section, series, followed, trend))


def _absolute(section: Section, followed: _Followed) -> Iterable[Chart]:
    if section.full is None:
        return
    key = section.full.case.key
    values = [night[key].median("latency") if key in night and night[key].ok else None for night in followed.rows]
    if any(value is not None for value in values):
        yield _chart("The full cache's own latency, run by run", "Latency (s)", {key: (section.full, values)}, followed,
                     Signs({}, {}), "What the ratios hide: a change here is one of the machine, its software or the full cache.",
                     words.seconds)


def _cost(row: Row | None) -> float | None:
    return 1 / row.speed_up.value if row and row.speed_up else None


_Series = dict[str, tuple[Row, list[float | None]]]
_Changes = dict[str, Sequence[ChangeLike]]


def _found(section: Section, series: _Series, followed: _Followed, trend: Trend | None) -> _Changes:
    """The changes of each case, in all stretches of runs with one environment."""
    if trend is None:
        return {}
    return {key: trend([math.nan if value is None else math.log(value) for value in values], followed.fingerprints,
                       section.case.device_class) for key, (_, values) in series.items()}  # fmt: skip


def _told(label: str, change: ChangeLike, names: Sequence[str]) -> str:
    """A change as one plain sentence."""
    first, last = (f"run {names[night]}" for night in (change.first, change.last))
    ends = "" if change.gates else " It is reported and gates nothing."
    label, p = words.name(label), f"p = {change.p:.2g}"
    if change.kind == "spread":
        return f"{label}: variance changed at {first}: distances from the level are {change.size:.2g} times what they were ({p}).{ends}"
    slower = f"{words.percent(abs(change.size))} {'more' if change.size > 0 else 'less'}"
    if change.kind == "ramp":
        return f"{label}: a ramp from {first} to {last}: {slower} in the end ({p}).{ends}"
    return f"{label}: a step at {first}: {slower} from there on ({p}).{ends}"


def _chart(
    title: str, y_title: str, series: _Series, followed: _Followed, shown: Signs, caption: str, text: Callable[[float], str],
    found: _Changes | None = None,
) -> Chart:
    """One line for each case with a mark where it changed, a dotted one across where the environment changes."""
    points, lines, every = [], [], series
    series = dict(list(series.items())[:CASES])
    for row, values in series.values():
        there = [(float(k), value) for k, value in enumerate(values) if value is not None]
        lines.append(Curve(tuple(there), shown.colour(row), series=shown.series(row)))
        points += [Point(x, y, shown.colour(row), f"{words.plain(row.case.label, 60)} · run {followed.names[int(x)]} · {text(y)}",
                         shown.series(row), shown.shape(row)) for x, y in there]
    told = [(row, values, change, _told(row.case.label, change, followed.names))
            for key, (row, values) in every.items() for change in (found or {}).get(key, ())]
    points += [_mark(row, change, values[change.first] or 0.0, said, shown) for row, values, change, said in told if row.case.key in series]
    y = linear(y_title, *ranged([point.y for point in points], 0.1))
    epochs = _epochs(followed.fingerprints)
    lines += [Curve(((k - 0.5, y.low), (k - 0.5, y.high)), dash="2 3") for k in epochs]
    last = len(followed.names) - 1
    ticks = tuple((float(k), followed.names[k].split(" · ")[0]) for k in range(0, last + 1, 1 + last // _TICKS))
    field = Field(Axis("Run", -0.3, last + 0.3, ticks), y, tuple(points), tuple(lines))
    table = tuple((row.case.label, *(words.DASH if value is None else text(value) for value in values)) for row, values in every.values())
    said = caption + ("" if len(every) == len(series) else f" The first {CASES} of {len(every)} cases are drawn; the table holds all.")
    said += (" Dotted: another numerics fingerprint begins, and figures on its two sides do not compare." if epochs else "")
    if told:
        said += " Hollow marks: a diamond where a step is, a triangle where a ramp begins, a square where the variance changed."
    return Chart("history", title, said, field, ("Case", *followed.names), table, tuple(every), notes=tuple(line for *_, line in told))


def _mark(row: Row, change: ChangeLike, y: float, said: str, shown: Signs) -> Point:
    return Point(float(change.first), y, "currentColor", words.plain(said, 300), shown.series(row), _SHAPES[change.kind], hollow=True,
                 scale=1.9)


def _epochs(fingerprints: Sequence[str]) -> list[int]:
    """Places at which the environment is another than before."""
    return [k for k in range(1, len(fingerprints)) if fingerprints[k] != fingerprints[k - 1]]
