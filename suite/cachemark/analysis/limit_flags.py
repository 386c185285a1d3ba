"""Flags of a timed row that its device's limit gives away: a speed-up that the bytes saved do not allow, a full cache that is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..core import limits
from ..core.limits import Limit
from ..core.spec import FULL, Case
from .report_row import Mark, ReportRow

IDLE, ARTEFACT = "idle device", "artefact"
OF_SPEED = (IDLE, ARTEFACT)  # flags that forbid to believe a speed-up


def limit_of(row: ReportRow | None) -> Limit | None:
    """The limit of a timed row, or None where there is none. A report may be made of a store that another version has written."""
    stored = row.outcome.facts.get("limit") if row is not None and row.ok and row.median("latency") else None
    try:
        return Limit.from_json(stored) if isinstance(stored, dict) else None
    except (KeyError, TypeError):
        return None


class _Bound(NamedTuple):
    """The speed-up that an arm can have: what the bytes and FLOPs saved allow at one token a pass (``alone``), times the ``tokens`` that
    its decoder draws a pass; None without one."""

    alone: float
    tokens: float | None = None

    @property
    def allowed(self) -> float:
        return self.alone if self.tokens is None else self.tokens * self.alone


def allowed(row: ReportRow, rows: Sequence[ReportRow]) -> float | None:
    """The speed-up that an arm can have over the full cache, which is among the ``rows`` of its cell: what the bytes and FLOPs saved
    allow. Under a decoder that is what they allow at one token a pass, times the tokens that it draws a pass: the windows compute more,
    which costs nothing on a device that waits. None where it is not known."""
    bound = _bound(row, rows)
    return bound.allowed if bound else None


def disbelieved(row: ReportRow, rows: Sequence[ReportRow]) -> str:
    """The reason for which the speed-up of a row is not believed, or nothing."""
    return _artefact(row, _bound(row, rows))


def flags(row: ReportRow, rows: Sequence[ReportRow]) -> tuple[Mark, ...]:
    """Everything that the comparison of a row with its limit and with the other ``rows`` of its cell gives away."""
    limit, latency, bound = limit_of(row), row.median("latency") or 0.0, _bound(row, rows)
    found = [
        Mark(IDLE, "warn", limits.idle(limit, latency)) if limit and row.case.role == "baseline" else None,
        Mark(ARTEFACT, "warn", _artefact(row, bound)),
        Mark("use the full cache", "calm", _no_gain(row, bound)),
        Mark("in a cache", "calm", limits.too_fast(limit, latency)) if limit else None,
    ]
    return tuple(mark for mark in found if mark and mark.reason)


def flagged(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """The rows of a cell with the flags that forbid to believe their speed, so that these stand where the speed stands."""
    return [replace(row, marks=(*(mark for mark in flags(row, rows) if mark.text in OF_SPEED), *row.marks)) for row in rows]


def _artefact(row: ReportRow, bound: _Bound | None) -> str:
    """The reason for which a speed-up is not believed, or nothing."""
    if row.speed_up is None or bound is None:
        return ""
    if bound.tokens is None:
        return limits.artefact(row.speed_up.value, bound.alone)
    return limits.beyond_passes(row.speed_up.value, bound.tokens, bound.alone)


def _no_gain(row: ReportRow, bound: _Bound | None) -> str:
    """The reason to use the full cache, or nothing."""
    if row.speed_up is None or bound is None:
        return ""
    if bound.tokens is None:
        return limits.no_gain(row.speed_up.high, bound.alone)
    return limits.no_gain_by_passes(row.speed_up.high, bound.tokens)


def _bound(row: ReportRow, rows: Sequence[ReportRow]) -> _Bound | None:
    """The bound of an arm, or None where it is not known: under a decoder that needs the row of its method without one."""
    case = row.case
    if case.role == "baseline":
        return None
    if not case.decoder:
        alone = _ideal(row, rows)
        return None if alone is None else _Bound(alone)
    stored = row.outcome.facts.get("tokens_per_pass")
    tokens = stored.get("mean") if isinstance(stored, dict) else None
    if not isinstance(tokens, float):
        return None
    if (case.method, case.codec, case.budget) == (FULL, "native", "1"):
        return _Bound(1.0, tokens)
    alone = next((_ideal(other, rows) for other in rows if not other.case.decoder and _same_method(other.case, case)), None)
    return None if alone is None else _Bound(alone, tokens)


def _ideal(row: ReportRow, rows: Sequence[ReportRow]) -> float | None:
    """The speed-up that the bytes and FLOPs saved allow by the limits of both, or None where one is not known."""
    mine, whole = limit_of(row), limit_of(next((other for other in rows if other.case.role == "baseline"), None))
    return limits.ideal(whole, mine) if mine and whole else None


def _same_method(one: Case, other: Case) -> bool:
    return (one.role, one.method, one.codec, one.budget, one.knobs) == (other.role, other.method, other.codec, other.budget, other.knobs)
