"""Tables as data for documents: values, margins, bold entries, and reasons for empty cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from ..analysis.columns import (
    LIMITS,
    RECOMMENDED,
    Column,
    ColumnGroup,
    budget_cell,
    column_groups,
    columns_of,
    known_columns,
    paired_speed_note,
)
from ..analysis.explanations import PLACINGS
from ..analysis.method_placings import placing_lines
from ..analysis.report_row import ReportRow, faster
from ..analysis.report_view import Chapter, ReportView
from ..core import formatting as fmt
from ..core.errors import unknown
from ..core.outside_metrics import stored_names
from ..core.spec import Case
from ..core.units import FID, METRICS, metric, scores
from ..core.wording import on_one_line
from ..stats.intervals import LEVEL
from ..stats.sign_flip import sign_flips

ALPHA = 0.05  # of a test of two values of single images
ARROWS = {"lower": "↓", "higher": "↑"}
NAME = 60  # most characters of a name
BOLD = (f"Bold: the best ranked value of a budget and its statistical ties (per image: sign-flip test, p > {ALPHA:g}; otherwise "
        "overlapping intervals). Speedups and latencies are bold only with a speedup interval above 1×.")


@dataclass(frozen=True)
class TableEntry:
    """Value as text.

    ``margin`` is the distance to the farther end of a 95 % interval; ``ends`` are the ends of an interval with less coverage, or where the
    margin would exceed the metric's range; ``missing`` is the number of the reason (from 1) without a value.
    """

    text: str = ""
    margin: str = ""
    best: bool = False
    missing: int = 0
    ends: str = ""

    @property
    def with_margin(self) -> str:
        if self.missing:
            return f"{fmt.DASH} ({self.missing})"
        return f"{self.text} ± {self.margin}" if self.margin else f"{self.text} ({self.ends})" if self.ends else self.text


@dataclass(frozen=True)
class TableLine:
    """Row with one entry per column, or with ``status`` and the number of the ``reason``."""

    name: str
    budget: str
    entries: tuple[TableEntry, ...]
    status: str = ""
    reason: int = 0


@dataclass(frozen=True)
class Table:
    """Group of the report; ``blocks`` are its rows by full cache, budget and reference.

    ``comments``: notes that are not printed. ``settings``: how a plain table was measured, for its caption."""

    title: str
    groups: tuple[ColumnGroup, ...]
    blocks: tuple[tuple[TableLine, ...], ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    comments: tuple[str, ...] = ()
    settings: str = ""

    @property
    def columns(self) -> tuple[Column, ...]:
        return columns_of(self.groups)

    @property
    def titles(self) -> tuple[str, ...]:
        return tuple(f"{column.heading} {ARROWS[column.better]}" for column in self.columns)

    @property
    def has_brackets(self) -> bool:
        return any(entry.ends for block in self.blocks for line in block for entry in line.entries)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """First and last column of each group, counted from 1 with name and budget."""
        ends = tuple(accumulate((len(group.columns) for group in self.groups), initial=2))
        return tuple((before + 1, last) for before, last in pairwise(ends))


def tables(view: ReportView, columns: Sequence[str] = (), methods: Sequence[str] = (), plain: bool = False) -> tuple[Table, ...]:
    """Return one table per group, restricted to ``columns`` and ``methods`` if given. Raises UnknownName.

    ``plain``, for a paper: without reference rows, notes and worst-case intervals; values per image have their mean paired difference from
    the full cache in brackets, and the best value of each budget is bold whether or not a case is ranked.

    A plug-in's metric may be named without its digest.
    """
    columns_by_key = dict.fromkeys(key for chapter in view.chapters for key in known_columns(chapter.group))
    columns = [key for name in columns for key in (stored_names(name, columns_by_key) or [name])]
    named = dict.fromkeys(name for chapter in view.chapters for row in chapter.group.candidates for name in (row.method, row.case.method))
    for kind, wanted_names, among in (("column", columns, columns_by_key), ("method", methods, named)):
        if wrong := next((name for name in wanted_names if name not in among), ""):
            raise unknown(kind, wrong, among)
    return tuple(_table(view, chapter, columns, methods, plain) for chapter in view.chapters)


def headline(view: ReportView) -> tuple[str, ...]:
    """Return the columns that fit a page: speed, memory or computation, fidelity, quality."""
    fitting = ("speedup", "saving", *(name for name, about in METRICS.items() if about.tokens), *scores())
    keys = dict.fromkeys(column.key for chapter in view.chapters for column in columns_of(column_groups(chapter.group)))
    return tuple(key for key in keys if key in fitting or key.startswith(f"{FID}_"))


def _chosen(groups: tuple[ColumnGroup, ...], columns: Sequence[str]) -> tuple[ColumnGroup, ...]:
    taken = set[str]()
    chosen = []
    for group in groups:
        picked = tuple(c for c in group.columns if (not columns or c.key in columns) and c.key not in taken)
        taken.update(column.key for column in picked)
        chosen.append(replace(group, columns=picked))
    return tuple(group for group in chosen if group.columns)


def _table(view: ReportView, chapter: Chapter, columns: Sequence[str], methods: Sequence[str], plain: bool) -> Table:
    group, reasons = chapter.group, dict[str, int]()
    groups = _chosen((*column_groups(group), *((LIMITS, RECOMMENDED) if columns else ())), columns)
    candidates = [tuple(row for row in group.candidates_at(budget) if not methods or {row.method, row.case.method} & set(methods))
            for budget in group.budgets]
    best = {(id(row), column.key) for column in columns_of(groups) for rows in candidates
            for row in _best(rows, column, plain)}
    parts = [(group.full,) if group.full else (), *candidates, () if plain else group.references]
    full = group.full if plain else None
    blocks = tuple(tuple(_table_line(row, columns_of(groups), best, reasons, full) for row in part) for part in parts if part)
    labels = {row.label for part in parts for row in part}
    notes = tuple(_notes(view, chapter, labels, plain))
    if plain:
        return Table(chapter.heading, groups, blocks, (), (), (*reasons, *notes), _settings(group.case, view.device))
    return Table(chapter.heading, groups, blocks, tuple(reasons), notes)


def _settings(case: Case, device: str) -> str:
    """Return seeds, batch, repeats and device in words."""
    measured = [] if case.is_micro else [f"{case.samples} seeds", f"batch {case.batch}"]
    return ", ".join([*measured, f"median of {case.repeats} timed repeats", device])


def _table_line(
    row: ReportRow, columns: Sequence[Column], best: set[tuple[int, str]], reasons: dict[str, int], full: ReportRow | None = None,
) -> TableLine:
    """Return a row; for a plain table, ``full`` is the full cache's."""
    name = row.label if row.case.role in ("other_seeds", "other_batch") else row.name
    budget = budget_cell(row)
    share = f"{budget.text} ({budget.under})" if budget.under and full is None else budget.text
    if not row.ok:
        return TableLine(name, share, (), str(row.outcome.status), reasons.setdefault(row.outcome.reason, len(reasons) + 1))
    entries = []
    for column in columns:
        if column.value(row) is not None:
            bold = (id(row), column.key) in best
            entries.append(_entry(row, column, bold) if full is None else _plain(row, full, column, bold))
        else:
            missing = reasons.setdefault(column.reason(row), len(reasons) + 1)
            entries.append(TableEntry(fmt.DASH) if full is not None else TableEntry(missing=missing))
    return TableLine(name, share, tuple(entries))


def _plain(row: ReportRow, full: ReportRow, column: Column, best: bool) -> TableEntry:
    """Return a value, with the mean of its paired differences from the full cache in brackets.

    Fidelity is itself a distance from the full cache, whose own value is a limit such as 60 dB."""
    mine, its = row.outcome.raw(column.key), full.outcome.raw(column.key)
    if row is full or not (mine and its and column.per_image and len(mine) == len(its)) or metric(column.key).kind == "fidelity":
        return TableEntry(column.cell(row).text, best=best)
    difference = float(np.mean(np.array(mine, dtype=np.float64) - np.array(its, dtype=np.float64)))
    written = column.write(abs(difference))
    points = f"{written.removesuffix(' %')} pt" if written.endswith(" %") else written  # 1 % of a percentage would be another value
    return TableEntry(column.cell(row).text, best=best, ends=f"{'−' if difference < 0 else '+'}{points}")


def _entry(row: ReportRow, column: Column, best: bool) -> TableEntry:
    text, interval = column.cell(row).text, column.interval(row)
    if interval is None or not interval.stated:
        return TableEntry(text, best=best)
    far = max(interval.high - interval.value, interval.value - interval.low)
    least, most = (-math.inf, math.inf) if column.derived else metric(column.key).within
    if interval.confidence < LEVEL or interval.value - far < least or interval.value + far > most:
        return TableEntry(text, best=best, ends="–".join(_end(end, column, text) for end in (interval.low, interval.high)))
    if column.unit == "s":
        return TableEntry(text, f"{_end(far, column, text)} {text.split(' ')[1]}", best)
    return TableEntry(text, column.write(far) if far else "0", best)


def _end(value: float, column: Column, text: str) -> str:
    if column.write_end is not None:
        return column.write_end(value)
    if column.unit != "s":
        return column.write(value)
    number, unit = text.split(" ")
    return f"{value * (1000 if unit == 'ms' else 1):.{len(number.partition('.')[2])}f}"


# -- best values ------------------------------------------------------------------------------------------------------
def _best(rows: Iterable[ReportRow], column: Column, unranked: bool = False) -> list[ReportRow]:
    """Return the best ranked rows and their statistical ties; none without an interval or a second row.

    ``unranked``: count the other rows as well.
    """
    ranked = [(value.value, row) for row in rows if row.ok and (unranked or not row.unranked) and (value := column.value(row)) is not None]
    if len(ranked) < 2 or not all(_tellable(row, column) for _, row in ranked):
        return []
    best, first = (min if column.better == "lower" else max)(ranked, key=lambda pair: pair[0])
    alike = [row for value, row in ranked if row is first or value == best or not told_apart(first, row, column)]
    if column.timed:
        return [row for row in alike if row.speedup is not None and faster(row.speedup)]
    return alike


def _tellable(row: ReportRow, column: Column) -> bool:
    interval = column.interval(row)
    return interval is None or interval.stated or (column.per_image and len(row.outcome.raw(column.key) or ()) > 1)


def told_apart(row: ReportRow, other: ReportRow, column: Column) -> bool:
    """Return whether the values of two rows differ significantly.

    Per-image values by a sign-flip test of paired differences, other measured values by intervals, counts exactly.
    """
    mine, its = row.outcome.raw(column.key), other.outcome.raw(column.key)
    if mine and its and column.per_image and len(mine) == len(its):
        (sides,) = sign_flips([np.array(mine, dtype=np.float64) - np.array(its, dtype=np.float64)])
        return 2 * min(sides) <= ALPHA
    here, there = column.interval(row), column.interval(other)
    if here is not None and there is not None:
        return here.low > there.high or there.low > here.high
    return True


# -- notes below a table ----------------------------------------------------------------------------------------------
def _notes(view: ReportView, chapter: Chapter, labels: set[str], plain: bool) -> Iterable[str]:
    for note in chapter.notes:
        if rows := [row for row in note.rows if row in labels]:
            yield f"{', '.join(on_one_line(row, NAME) for row in rows)}: {note.text}"
    if turns := paired_speed_note(chapter.group):
        yield turns
    case, covered = chapter.group.case, chapter.coverage
    speed = "" if covered is None else f", widened by {chapter.process_bias} (coverage ≥ {fmt.percent(covered)})"
    if plain:
        yield f"Values: {case.samples} seeds ({case.seeds}), {case.repeats} timed repeats in one process, batch {case.batch}."
    else:
        yield (f"±: distance to the farther end of a {100 * LEVEL:g} % interval over {case.samples} seeds ({case.seeds}). Brackets: ends "
               f"of an interval, where ± would exceed the metric's range; of speedups and times, order statistics of {case.repeats} "
               f"repeats in one process{speed}. Batch {case.batch}.")
        yield BOLD
    yield from placing_lines(chapter.placings)
    if chapter.placings:
        yield PLACINGS
    if chapter.not_reproduced:
        yield chapter.not_reproduced
    if view.state != "finished":
        yield f"The run is {view.state}: cases are missing."
    changed = ", with uncommitted changes" if view.dirty else ""
    yield f"Plan {view.plan}, run {view.run}, {view.machine}, commit {view.commit[:12]}{changed}."
