"""The rows of the headline table as cells."""

from __future__ import annotations

from ..core.result import FULL_BESIDE
from ..core.spec import shown_share
from . import formatting as fmt
from .case_group import CaseGroup
from .columns import ColumnGroup, TableCell, columns_of
from .report_row import ReportRow, share_of_full

VISIBLE = 0.02  # of a speed-up: twice what latencies of three digits may be off by


def cells(row: ReportRow, shown: tuple[ColumnGroup, ...]) -> tuple[TableCell, ...]:
    """The cells right of a row's name and budget. A case that is not ok has one cell, its status and the reason; a row without any metric
    of its images has one cell for these, which says why."""
    columns = columns_of(shown)
    if not row.ok:
        return (TableCell("status", str(row.outcome.status), row.reason, span=len(columns)),)
    if row.no_judgement and not row.fidelity and not row.quality:
        measured = [column for column in columns if not column.of_images]
        reason = TableCell("judgement", "not judged", row.no_judgement, span=len(columns) - len(measured), empty=True)
        return (*(column.cell(row) for column in measured), reason)
    return tuple(column.cell(row) for column in columns)


def budget_cell(row: ReportRow) -> TableCell:
    """The budget, and below it the share of visual entries that was really kept."""
    true = row.outcome.facts.get("true_ratio")
    kept = f"true {true:.3f}" if isinstance(true, (int, float)) and row.case.role == "arm" else ""
    return TableCell("budget", shown_share(row.case.budget), kept, share_of_full(row.case.budget))


def paired_speed_note(group: CaseGroup) -> str:
    """The sentence that says why speed-ups are not the ratios of the latencies in the table, with the ratio that is furthest from its
    speed-up; empty where nobody would see a difference."""
    full = group.full.median("latency") if group.full else None
    ratios = [(abs(ratio - row.speed_up.value) / row.speed_up.value, row.case.label, ratio) for row in group.arms
              if full and row.speed_up and row.outcome.facts.get(FULL_BESIDE) and (ratio := full / (row.median("latency") or full))]
    distance, label, ratio = max(ratios, default=(0.0, "", 1.0))
    if distance <= VISIBLE:
        return ""
    return ("Speed-ups are against the full cache timed in turns with each method, not against its row above: by the two rows, "
            f"{fmt.name(label)} would be at {fmt.times(ratio)}.")
