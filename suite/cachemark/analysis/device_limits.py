"""Timed rows against the limits of their device: allowed speedups, and flags of implausible times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..core.limits import Limit, roofline_speedup
from ..core.spec import FULL, Case
from ..core.units import TIME
from . import formatting as fmt
from . import limit_flags
from .report_row import IMPLAUSIBLE, Mark, ReportRow

IDLE = "low utilization"
OF_SPEED = (IDLE, IMPLAUSIBLE)  # flags of speedups that must not be believed


class _Bound(NamedTuple):
    """The speedup that saved bytes and FLOPs allow, and a decoder's tokens per step.

    A decoder's windows compute more, which costs nothing on a device that waits for memory.
    """

    alone: float
    tokens: float | None = None

    @property
    def allowed(self) -> float:
        return self.alone if self.tokens is None else self.tokens * self.alone


def with_limits(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """Add to rows the speedup that their device allows, and flags; those of speedups lead the marks."""
    full = next((row for row in rows if row.case.role == "baseline"), None)
    checked = []
    for row in rows:
        bound = _bound(row, full, rows)
        flags = _flags(row, bound)
        marks = (*(mark for mark in flags if mark.text in OF_SPEED), *row.marks)
        checked.append(replace(row, roofline_speedup=bound.allowed if bound else None, limit_marks=flags, marks=marks))
    return checked


def _flags(row: ReportRow, bound: _Bound | None) -> tuple[Mark, ...]:
    limit, latency, marks = row.limit, row.median(TIME) or 0.0, []
    if limit and row.case.role == "baseline":
        marks.append(Mark(IDLE, "warn", limit_flags.idle(limit, latency)))
    if bound and row.speedup is not None:
        speedup, (alone, tokens) = row.speedup, bound
        marks.append(Mark(IMPLAUSIBLE, "warn", limit_flags.artefact(speedup.value, alone) if tokens is None else
                          limit_flags.beyond_passes(speedup.value, tokens, alone)))
        marks.append(Mark("use the full cache", "calm", limit_flags.no_gain(speedup.high, alone) if tokens is None else
                          limit_flags.no_gain_by_passes(speedup.high, tokens)))
    if limit:
        marks.append(Mark("in a cache", "calm", limit_flags.too_fast(limit, latency)))
    return tuple(mark for mark in marks if mark.reason)


def _bound(row: ReportRow, full: ReportRow | None, rows: Sequence[ReportRow]) -> _Bound | None:
    """The bound of a method, None where unknown: a decoder needs the row of its method without one."""
    case = row.case
    if case.role == "baseline":
        return None
    if not case.decoder:
        alone = _speedup_bound(row, full)
        return None if alone is None else _Bound(alone)
    stored = row.outcome.facts.get("tokens_per_pass")
    tokens = stored.get("mean") if isinstance(stored, dict) else None
    if not isinstance(tokens, float):
        return None
    if (case.method, case.codec, case.budget) == (FULL, "native", "1"):
        return _Bound(1.0, tokens)
    sequential = (row for row in rows if not row.case.decoder and _settings(row.case) == _settings(case))
    alone = next((_speedup_bound(row, full) for row in sequential), None)
    return None if alone is None else _Bound(alone, tokens)


def _speedup_bound(row: ReportRow, full: ReportRow | None) -> float | None:
    return roofline_speedup(full.limit, row.limit) if full and full.limit and row.limit else None


def _settings(case: Case) -> tuple[object, ...]:
    return case.role, case.method, case.codec, case.budget, case.parameters


@dataclass(frozen=True)
class Limits:
    """The rows of a group with a roofline time, the ``rates`` behind it, and its longest ``parts``."""

    rates: str
    parts: str
    rows: tuple[ReportRow, ...]

    @property
    def decoders(self) -> bool:
        """Return whether a row decodes several tokens per step."""
        return any(row.case.decoder for row in self.rows)


def against_limits(full: ReportRow | None, candidates: Sequence[ReportRow]) -> Limits | None:
    """The table of a group, None where no row has a roofline time."""
    rows = tuple(row for row in (*((full,) if full else ()), *candidates) if row.limit)
    if not rows or (first := rows[0].limit) is None:
        return None
    rates = f"{first.bandwidth / 1e9:,.1f} GB/s, {first.peak_flops / 1e12:,.2f} TFLOP/s"
    return Limits(rates, _longest_parts(full.limit) if full and full.limit else "", rows)


def _longest_parts(limit: Limit) -> str:
    longest = sorted(limit.by.items(), key=lambda part: -part[1])[:3]
    return ", ".join(f"{name} {fmt.percent(seconds / limit.roofline_time)}" for name, seconds in longest)
