"""History of a plan: each case relative to the full cache of its run, and its changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core import formatting as fmt
from ..core.result import Outcome
from ..core.units import TIME
from ..stats.changepoints import ChangePoint, changes
from ..stats.paired_test import FLOOR
from .case_group import CaseGroup, case_groups
from .report_row import ReportRow

if TYPE_CHECKING:  # a page is made without a store
    from ..store.rows import RunRecord

MOST = 60  # most runs in a history


@dataclass(frozen=True)
class HistoryNight:
    """Run with its results."""

    run: RunRecord
    outcomes: Sequence[Outcome]

    @property
    def name(self) -> str:
        return f"{fmt.plain(self.run.id, 12)} · {fmt.plain(str(self.run.started)[:10])}"


@dataclass(frozen=True)
class CaseHistory:
    """Case by run: latency relative to the full cache (for the full cache in seconds), None where missing.

    ``changes`` have a sentence each; ``blind`` names the changes that the runs cannot show.
    """

    row: ReportRow
    values: tuple[float | None, ...]
    changes: tuple[tuple[ChangePoint, str], ...] = ()
    blind: str = ""


@dataclass(frozen=True)
class RunHistory:
    """Runs of a group, oldest first, with relative latencies of its cases and of the ``full`` cache."""

    names: tuple[str, ...]
    fingerprints: tuple[str, ...]
    candidates: tuple[CaseHistory, ...]
    full: CaseHistory | None


def run_history(group: CaseGroup, nights: Sequence[HistoryNight]) -> RunHistory | None:
    """Return relative latencies by run with their changes, None for a single run or without latencies."""
    recent = [night for night in nights if any(o.case.cell == group.case.cell for o in night.outcomes)][-MOST:]
    if len(recent) < 2:
        return None
    names, fingerprints = tuple(night.name for night in recent), tuple(night.run.environment.fingerprint for night in recent)
    rows = []
    for night in recent:
        own = [o for o in night.outcomes if o.case.cell == group.case.cell and o.case.role in ("candidate", "baseline")]
        rows.append({row.case.key: row for part in case_groups(own) for row in part.rows})
    candidates = (_followed(row, rows, lambda history: 1 / history.speedup.value if history.speedup else None)
                  for row in group.candidates)
    days = [night.run.day for night in recent]
    cases = (_changed(case, names, fingerprints, days) for case in candidates if case)
    full = _followed(group.full, rows, lambda history: history.median(TIME) if history.ok else None) if group.full else None
    history = RunHistory(names, fingerprints, tuple(cases), full)
    return history if history.candidates or history.full else None


def _followed(
    row: ReportRow, nights: Sequence[dict[str, ReportRow]], value: Callable[[ReportRow], float | None],
) -> CaseHistory | None:
    values = tuple(value(night[row.case.key]) if row.case.key in night else None for night in nights)
    return CaseHistory(row, values) if any(number is not None for number in values) else None


def _changed(case: CaseHistory, names: Sequence[str], fingerprints: Sequence[str], days: Sequence[int]) -> CaseHistory:
    """Return the case with the changes of its log costs, and the smallest detectable change."""
    label, least = case.row.label, FLOOR.get(case.row.case.device_class, max(FLOOR.values()))
    segments = changes([math.nan if value is None else math.log(value) for value in case.values], fingerprints, least, days)
    newest = segments[-1]
    return replace(case, changes=tuple((change, _sentence(label, change, names)) for segment in segments for change in segment.changes),
                   blind=f"{fmt.name(label)}: {newest.blind}." if newest.blind and newest.shows > least else "")


def _sentence(label: str, change: ChangePoint, names: Sequence[str]) -> str:
    first, last = (f"run {names[night]}" for night in (change.first, change.last))
    ends = "" if change.gates else " Reported only."
    label, p = fmt.name(label), f"p = {change.p:.2g}"
    moved = f"{label}: latency relative to the full cache {'rose' if change.size > 0 else 'fell'} by {fmt.percent(abs(change.size))}"
    return f"{moved} {f'from {first} to {last}' if change.kind == 'ramp' else f'at {first}'} ({p}).{ends}"
