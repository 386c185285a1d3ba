"""Flags of a timed row that its device's limit gives away: a speed-up that the bytes saved do not allow, a full cache that is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core import limits
from ...core.limits import Limit
from ...core.spec import FULL
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


def flags(row: ReportRow, limit: Limit, whole: Limit | None) -> tuple[Mark, ...]:
    """Everything that the comparison of a row with its limit gives away; ``whole`` is the limit of the full cache."""
    own, latency = row.case.role == "baseline", row.median("latency") or 0.0
    ideal = limits.ideal(whole, limit) if whole and not own else None
    found = [
        Mark(IDLE, "warn", limits.idle(limit, latency)) if own else None,
        Mark(ARTEFACT, "warn", limits.artefact(row.speed_up.value, ideal)) if row.speed_up and ideal and not own else None,
        Mark("use the full cache", "calm", limits.no_gain(row.speed_up.high, ideal)) if row.speed_up and ideal and not own else None,
        Mark("in a cache", "calm", limits.too_fast(limit, latency)),
    ]
    return tuple(mark for mark in found if mark and mark.reason)


def flagged(rows: Sequence[ReportRow], full: ReportRow | None) -> list[ReportRow]:
    """The rows with the flags that forbid to believe their speed, so that these stand where the speed stands."""
    whole = limit_of(full)
    marks = ([mark for mark in flags(row, limit, whole) if mark.text in OF_SPEED] if (limit := limit_of(row)) else [] for row in rows)
    return [replace(row, marks=(*(found or _beyond_passes(row)), *row.marks)) for row, found in zip(rows, marks, strict=True)]


def _beyond_passes(row: ReportRow) -> list[Mark]:
    """The flag of a full cache under a decoder that is faster than its passes are fewer."""
    stored = row.outcome.facts.get("tokens_per_pass")
    tokens = stored.get("mean") if isinstance(stored, dict) else None
    if row.case.method != FULL or not isinstance(tokens, float) or not row.speed_up:
        return []
    reason = limits.beyond_passes(row.speed_up.value, tokens)
    return [Mark(ARTEFACT, "warn", reason)] if reason else []
