"""Latencies beside what the device allows, by the least time that each outcome carries in its facts."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import limits
from ..core.limits import Limit
from . import formatting as fmt
from .case_group import CaseGroup
from .limit_flags import allowed, flags, limit_of
from .report_row import Mark, ReportRow


@dataclass(frozen=True)
class LimitRow:
    """One timed row as text. ``flags`` are what the comparison with the limit gives away, each with its sentence."""

    key: str
    name: str
    latency: str
    least: str
    over: str
    mbu: str
    mfu: str
    ideal: str
    measured: str
    reached: str
    slope: str
    flags: tuple[Mark, ...]


@dataclass(frozen=True)
class Limits:
    """The table of a group. ``rates`` says on which rates the least times stand; ``parts`` where the full cache's goes; ``decoders``
    whether a line draws several tokens a pass."""

    rates: str
    parts: str
    lines: tuple[LimitRow, ...]
    decoders: bool

    @property
    def sentences(self) -> tuple[tuple[str, str], ...]:
        """(row, sentence) for every flag."""
        return tuple((line.name, flag.reason) for line in self.lines for flag in line.flags)


def against_limits(group: CaseGroup) -> Limits | None:
    """The table, or None where no row of the group knows its least time."""
    full = group.full
    known = [(row, limit) for row in (*((full,) if full else ()), *group.arms) if (limit := limit_of(row))]
    if not known:
        return None
    whole = limit_of(full) if full else None
    first = whole or known[0][1]
    rates = f"{first.copy / 1e9:,.1f} GB/s copied, {first.matmul / 1e12:,.2f} TFLOP/s multiplied"
    return Limits(rates, _parts(whole) if whole else "", tuple(_limit_row(row, limit, group) for row, limit in known),
                  any(row.case.decoder for row, _ in known))


def _parts(limit: Limit) -> str:
    """The three longest parts of a least time, as shares."""
    longest = sorted(limit.by.items(), key=lambda part: -part[1])[:3]
    return ", ".join(f"{name} {fmt.percent(seconds / limit.least_time)}" for name, seconds in longest)


def _limit_row(row: ReportRow, limit: Limit, group: CaseGroup) -> LimitRow:
    latency, ideal = row.median("latency") or 0.0, allowed(row, group.rows)
    measured = row.speed_up.value if row.speed_up and row.case.role != "baseline" else None
    return LimitRow(
        row.case.key, row.case.label, fmt.seconds(latency), fmt.seconds(limit.least_time), fmt.times(limit.over(latency)),
        fmt.percent(limit.mbu(latency)), fmt.percent(limit.mfu(latency)), fmt.times(ideal) if ideal else fmt.DASH,
        fmt.times(measured) if measured else fmt.DASH,
        fmt.percent(measured / ideal) if measured and ideal else fmt.DASH, _slope(row), flags(row, group.rows),
    )


def _slope(row: ReportRow) -> str:
    """Bytes per second that a step's growth is, and what is left of a step; nothing where no line fits."""
    stored = row.outcome.facts.get("slope")
    if not isinstance(stored, dict) or not stored.get("bytes_per_s") or stored.get("r2", 0) < limits.FITS:
        return fmt.DASH
    return f"{stored['bytes_per_s'] / 1e9:.1f} GB/s + {fmt.seconds(stored['intercept'])}"
