"""The headline tables of a report as data, for documents: the figures of the page, margins, what is best, and why a cell is empty."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..analysis import formatting as fmt
from ..analysis.leaderboard import Column, ColumnGroup, TableCell, budget_cell, cells, column_groups, columns_of
from ..analysis.report_row import FIDELITY, QUALITY, ReportRow, faster
from ..analysis.report_view import Chapter, ReportView
from ..core.errors import unknown
from ..core.units import OUTSIDE, SCORES, is_metric, metric
from ..core.wording import on_one_line
from ..stats.intervals import LEVEL, LUCK, Interval, median_over_repeats
from ..stats.sign_flip import sign_flips

ALPHA = 0.05  # of a test of two figures of single images
_COST = ("speed_up", "latency", "saving", "kv_logical", "kv_state", "flops", "added")  # keys of columns that judge no image
_OF_TIME = ("speed_up", "latency")
NAME = 60  # characters of a name that are shown
_SAID = ("token/s", "dB", "nat/token")  # units that a figure of a table does not show, so that the heading must
BOLD = ("Bold: the best of a budget and all that cannot be told apart from it: for figures of single images, a sign-flip test of the "
        f"differences at the same seeds has p > {ALPHA:g}; for other measured figures, the intervals overlap; for counts, the values are "
        "equal. A speed or a latency is bold only where its row is shown to be faster than the full cache. Rows that are not ranked are "
        "never bold.")


@dataclass(frozen=True)
class TableEntry:
    """A figure as the page prints it. ``margin`` reaches to the farther end of its 95 % interval and is empty where there is none;
    ``ends`` are those of an interval that covers less, which no ± may hide; ``missing`` is the number of the reason (from 1) where there
    is no figure."""

    text: str = ""
    margin: str = ""
    best: bool = False
    missing: int = 0
    ends: str = ""

    @property
    def shown(self) -> str:
        """The figure with its margin or its ends, or the number of the reason."""
        if self.missing:
            return f"{fmt.DASH} ({self.missing})"
        return f"{self.text} ± {self.margin}" if self.margin else f"{self.text} ({self.ends})" if self.ends else self.text


@dataclass(frozen=True)
class TableLine:
    """A row. ``entries`` has one for each column, or none where the case has no figures: then ``status`` and the number ``reason``."""

    name: str
    budget: str
    entries: tuple[TableEntry, ...]
    status: str = ""
    reason: int = 0


@dataclass(frozen=True)
class Table:
    """A group of the report. ``groups`` hold its columns; ``blocks`` are its rows: the full cache, each budget, the references;
    ``reasons`` say what is missing, ``notes`` what a reader should know of single rows and of the whole."""

    title: str
    groups: tuple[ColumnGroup, ...]
    blocks: tuple[tuple[TableLine, ...], ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of all groups."""
        return columns_of(self.groups)


def tables(view: ReportView, columns: Sequence[str] = (), methods: Sequence[str] = ()) -> tuple[Table, ...]:
    """One table for each group of the report, with these ``columns`` (by the names of their metrics) and ``methods`` alone, where any are
    named; the full cache and the references always. What is bold is best among the rows shown. Raises UnknownName."""
    known = dict.fromkeys(column.key for chapter in view.chapters for column in columns_of(column_groups(chapter.group)))
    named = dict.fromkeys(name for chapter in view.chapters for row in chapter.group.arms for name in (row.method, row.case.method))
    for kind, given, among in (("column", columns, known), ("method", methods, named)):
        if wrong := next((name for name in given if name not in among), ""):
            raise unknown(kind, wrong, among)
    return tuple(_table(view, chapter, columns, methods) for chapter in view.chapters)


def headline(view: ReportView) -> tuple[str, ...]:
    """The columns that fit the width of a page: speed, memory or computation, one or two of fidelity, and quality."""
    wanted = ("speed_up", "saving", "token_agreement", "token_distance", "kl", "forced_distance", *SCORES)
    keys = dict.fromkeys(column.key for chapter in view.chapters for column in columns_of(column_groups(chapter.group)))
    return tuple(key for key in keys if key in wanted or key.startswith("fid_"))


def _chosen(groups: tuple[ColumnGroup, ...], columns: Sequence[str]) -> tuple[ColumnGroup, ...]:
    """The groups with these columns alone, all of them where none is named."""
    left = (replace(group, columns=tuple(c for c in group.columns if not columns or c.key in columns)) for group in groups)
    return tuple(group for group in left if group.columns)


def _table(view: ReportView, chapter: Chapter, columns: Sequence[str], methods: Sequence[str]) -> Table:
    group, reasons = chapter.group, dict[str, int]()
    shown, whole = _chosen(column_groups(group), columns), column_groups(group)
    arms = [tuple(row for row in group.arms_at(budget) if not methods or {row.method, row.case.method} & set(methods))
            for budget in group.budgets]
    best = {(id(row), column.key) for column in columns_of(shown) for rows in arms for row in _best(rows, column, whole)}
    parts = [(group.full,) if group.full else (), *arms, group.references]
    blocks = tuple(tuple(_line(row, shown, whole, best, reasons) for row in part) for part in parts if part)
    titled = tuple(replace(heading, columns=tuple(map(_with_unit, heading.columns))) for heading in shown)
    labels = {row.case.label for part in parts for row in part}
    return Table(chapter.heading, titled, blocks, tuple(reasons), tuple(_notes(view, chapter, labels)))


def _with_unit(column: Column) -> Column:
    unit = metric(column.key).unit if is_metric(column.key) else ""
    return replace(column, title=f"{column.title}, {unit}") if unit in _SAID else column


def _line(
    row: ReportRow, shown: tuple[ColumnGroup, ...], whole: tuple[ColumnGroup, ...], best: set[tuple[int, str]], reasons: dict[str, int],
) -> TableLine:
    """A row with the columns that are ``shown`` of the ``whole``; ``reasons`` are those met so far with their numbers."""
    name = row.case.label if row.case.role in ("floor", "numerics") else row.method
    budget = budget_cell(row)
    share = f"{budget.text} ({budget.under})" if budget.under else budget.text
    if not row.ok:
        return TableLine(name, share, (), str(row.outcome.status), reasons.setdefault(row.reason, len(reasons) + 1))
    known, entries = _figures(row, whole), []
    for key in (column.key for column in columns_of(shown)):
        if key in known:
            entries.append(_entry(row, known[key], (id(row), key) in best))
        else:
            entries.append(TableEntry(missing=reasons.setdefault(_no_figure(row, key), len(reasons) + 1)))
    return TableLine(name, share, tuple(entries))


def _figures(row: ReportRow, shown: tuple[ColumnGroup, ...]) -> dict[str, TableCell]:
    return {cell.key: cell for cell in cells(row, shown) if not cell.empty}


def _entry(row: ReportRow, cell: TableCell, best: bool) -> TableEntry:
    interval = _interval(row, cell.key)
    if interval is None or not interval.stated:
        return TableEntry(cell.text, best=best)
    if interval.confidence >= LEVEL:
        return TableEntry(cell.text, _margin(interval, cell), best)
    return TableEntry(cell.text, best=best, ends="–".join(_end(end, cell) for end in (interval.low, interval.high)))


def _interval(row: ReportRow, key: str) -> Interval | None:
    """That of a measured figure; what is counted has none."""
    if key == "speed_up":
        return row.speed_up if row.case.role == "arm" else None
    if key == "latency":
        return median_over_repeats(row.outcome.repeats(key))
    return row.fidelity.get(key) or row.quality.get(key)


def _margin(interval: Interval, cell: TableCell) -> str:
    far = max(interval.high - interval.value, interval.value - interval.low)
    if cell.key == "latency":
        return f"{_end(far, cell)} {cell.text.split(' ')[1]}"
    return fmt.figure(far, cell.key) if far else "0"


def _end(value: float, cell: TableCell) -> str:
    """A number beside a figure: of a latency in the unit of the figure, which may be another one than its own, and with as many digits."""
    if cell.key == "speed_up":
        return f"{value:.2f}"
    number, unit = cell.text.split(" ")
    return f"{value * (1000 if unit == 'ms' else 1):.{len(number.partition('.')[2])}f}"


def _no_figure(row: ReportRow, key: str) -> str:
    """The reason why a row with figures has none in this column."""
    if key in _COST and not row.timed:
        return "References for fidelity are not timed, and their bytes are not compared."
    if row.case.role == "baseline" and (key == "saving" or key in FIDELITY):
        return "The other rows are compared with it."
    if key == "speed_up":
        return row.no_speed_up
    if key == "saving" and row.outcome.flags:  # its bytes may well be measured, but have no ratio to the full cache's
        return f"Not compared with the full cache. {row.outcome.flags[0]}"
    return "Not measured." if key in _COST else row.no_judgement or "Not measured."


# -- what is best -----------------------------------------------------------------------------------------------------
def _best(rows: Iterable[ReportRow], column: Column, shown: tuple[ColumnGroup, ...]) -> list[ReportRow]:
    """The best of the rows that may be ranked, with all that are not told apart from it; none where nothing can be told: fewer than
    two rows, or a measured figure without an interval."""
    key = column.key
    known = [(cell.order, row) for row in rows if row.ok and not row.unranked and (cell := _figures(row, shown).get(key)) is not None]
    ranked = [(value, row) for value, row in known if value is not None]
    if len(ranked) < 2 or not all(_tellable(row, key) for _, row in ranked):
        return []
    first = (min if column.better == "lower" else max)(ranked, key=lambda pair: pair[0])
    alike = [row for value, row in ranked if row is first[1] or (value == first[0]) or not told_apart(first[1], row, key)]
    if key in _OF_TIME:
        return [row for row in alike if row.speed_up is not None and faster(row.speed_up)]
    return alike


def _tellable(row: ReportRow, key: str) -> bool:
    """Return whether the figure can be told from another: one of single images has several, any other measured one an interval."""
    interval = _interval(row, key)
    return interval is None or interval.stated or (_of_images(key) and len(row.outcome.raw(key) or ()) > 1)


def _of_images(key: str) -> bool:
    """True of a figure that single images have."""
    return key in FIDELITY or key in QUALITY or key in OUTSIDE


def told_apart(one: ReportRow, other: ReportRow, key: str) -> bool:
    """Return whether the figures of two rows of a group differ by more than what chance does to them.

    Figures of single images at the same seeds by the sign-flip test of their differences; other measured figures by intervals that do
    not meet; what is counted by its values.
    """
    mine, its = one.outcome.raw(key), other.outcome.raw(key)
    if mine and its and _of_images(key) and len(mine) == len(its):
        (sides,) = sign_flips([np.array(mine, dtype=np.float64) - np.array(its, dtype=np.float64)])
        return 2 * min(sides) <= ALPHA
    here, there = _interval(one, key), _interval(other, key)
    if here is not None and there is not None:
        return here.low > there.high or there.low > here.high
    return True


# -- what stands below ------------------------------------------------------------------------------------------------
def _notes(view: ReportView, chapter: Chapter, labels: set[str]) -> Iterable[str]:
    """Remarks on single rows, as on the page, as far as the rows with these ``labels`` are concerned, then what holds for all."""
    for note in chapter.notes:
        if rows := [row for row in note.rows if row in labels]:
            yield f"{', '.join(on_one_line(row, NAME) for row in rows)}: {note.text}"
    case, covered = chapter.group.case, chapter.coverage
    speed = "" if covered is None else (f"; those of speed-ups are wider by what two processes of {fmt.percent(LUCK)} luck differ by, and "
                                        f"cover at least {fmt.percent(covered)} where that holds")
    yield (f"± is the distance to the farther end of a {100 * LEVEL:g} % interval: for means, over {case.samples} seeds ({case.seeds}). In "
           f"brackets stand the ends of intervals that cover less: of latencies and speed-ups, from order statistics over {case.repeats} "
           f"repeats in one process (variation between processes and days is not included in latencies{speed}). Batch {case.batch}.")
    yield BOLD
    if chapter.unanchored:
        yield chapter.unanchored
    if view.state != "finished":
        yield f"The run is {view.state}; cases that it did not reach are missing."
    changed = ", with uncommitted changes" if view.dirty else ""
    yield f"Plan {view.plan}, run {view.run}, {view.machine}, commit {view.commit[:12]}{changed}."
