"""Roofline speedups of timed rows, and flags of times that contradict the device's limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..core import formatting as fmt
from ..core.limits import roofline_speedup
from ..core.spec import FULL, Case
from ..core.units import TIME
from .report_row import BUSY_MACHINE, IMPLAUSIBLE, Mark, ReportRow

LOW_UTILIZATION = "low utilization"
OF_SPEED = (LOW_UTILIZATION, IMPLAUSIBLE, BUSY_MACHINE)  # flags of unreliable speedups
TOLERANCE = 1.1  # largest plausible ratio of measured to roofline speedup; above it, the baseline is probably at fault
UTILIZATION = 0.4  # smallest fraction of bandwidth or peak FLOP/s of a baseline that uses its device well
OPERATIONS = {"linear": "matmul"}  # names of parts; "linear" is also a method
CACHED = 0.95  # smallest ratio of measured to roofline time; below it, data came from a cache of the device


def with_limits(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """Add roofline speedups and flags to rows; flags of speedups come first among the marks."""
    full = next((row for row in rows if row.case.role == "baseline"), None)
    checked = []
    for row in rows:
        alone, tokens = _bound(row, full, rows)
        allowed = None if alone is None else alone * (tokens or 1.0)
        flags = _flags(row, alone, tokens)
        marks = (*(mark for mark in flags if mark.text in OF_SPEED), *row.marks)
        checked.append(replace(row, roofline_speedup=allowed, limit_marks=flags, marks=marks))
    return checked


def _flags(row: ReportRow, alone: float | None, tokens: float | None) -> tuple[Mark, ...]:
    limit, latency, marks = row.limit, row.median(TIME) or 0.0, []
    if limit and row.case.role == "baseline" and max(mbu := limit.mbu(latency), mfu := limit.mfu(latency)) < UTILIZATION:
        marks.append(Mark(LOW_UTILIZATION, "warn", f"Baseline underutilizes the device ({100 * mbu:.0f} % of memory bandwidth, "
                          f"{100 * mfu:.0f} % of peak FLOP/s; threshold {100 * UTILIZATION:.0f} %). Speedups may not carry over to a "
                          "busy device."))
    if alone is not None and row.speedup is not None:
        if why := implausible(row.speedup.value, alone, tokens):
            marks.append(Mark(IMPLAUSIBLE, "warn", why))
        if row.speedup.high <= 1:
            marks.append(Mark("use the full cache", "calm", f"Not faster than the full cache; roofline speedup at this batch: "
                              f"{alone * (tokens or 1.0):.2f}×."))
    if limit and limit.over(latency) < CACHED:
        marks.append(Mark("in a cache", "calm", "Faster than its roofline time: keys, values or weights fit into a cache of the device "
                          "that is faster than its memory."))
    return tuple(marks)


def implausible(measured: float, alone: float, tokens: float | None = None) -> str:
    """Return why a speedup exceeds its roofline speedup, or nothing; one of at most 1 is always plausible.

    ``alone`` is the roofline speedup at one token per step, ``tokens`` the mean tokens per step of a decoder.
    """
    allowed = alone * (tokens or 1.0)
    if measured <= max(1.0, TOLERANCE * allowed):
        return ""
    basis = "the saved bytes and FLOPs allow" if tokens is None else f"{tokens:.2f} tokens per step and the saved bytes and FLOPs allow"
    return f"{measured:.2f}× exceeds the {allowed:.2f}× that {basis}. The baseline is probably slow for another reason."


def _bound(row: ReportRow, full: ReportRow | None, rows: Sequence[ReportRow]) -> tuple[float | None, float | None]:
    """Return the roofline speedup at one token per step, None if unknown, and a decoder's tokens per step.

    A decoder's windows compute more, which costs nothing on a device that waits for memory.
    """
    case, sequential, tokens = row.case, row, None
    if case.decoder:
        rate = row.outcome.facts.tokens_per_pass
        if case.role == "baseline" or rate is None:
            return None, None
        tokens = rate.mean
        if (case.method, case.codec, case.budget) == (FULL, "native", "1"):
            return 1.0, tokens
        sequential = next((other for other in rows if not other.case.decoder and _settings(other.case) == _settings(case)), row)
    if case.role == "baseline" or sequential.case.decoder or full is None or full.limit is None or sequential.limit is None:
        return None, tokens
    return roofline_speedup(full.limit, sequential.limit), tokens


def _settings(case: Case) -> tuple[object, ...]:
    return case.role, case.method, case.codec, case.budget, case.parameters


@dataclass(frozen=True)
class Limits:
    """Rows with a roofline time, the peak ``rates``, and the longest ``parts`` of the baseline."""

    rates: str
    parts: str
    rows: tuple[ReportRow, ...]

    @property
    def decoders(self) -> bool:
        return any(row.case.decoder for row in self.rows)


def against_limits(full: ReportRow | None, candidates: Sequence[ReportRow]) -> Limits | None:
    """Return the roofline table of a group, None if no row has a roofline time."""
    rows = tuple(row for row in (*((full,) if full else ()), *candidates) if row.limit)
    if not rows or (first := rows[0].limit) is None:
        return None
    rates = f"{first.bandwidth / 1e9:,.1f} GB/s memory bandwidth, {first.peak_flops / 1e12:,.2f} TFLOP/s"
    limit = full.limit if full else None
    longest = sorted(limit.by.items(), key=lambda part: -part[1])[:3] if limit else ()
    parts = [f"{OPERATIONS.get(name, name)} {fmt.percent(seconds / limit.roofline_time)}" for name, seconds in longest if limit]
    return Limits(rates, ", ".join(parts), rows)
