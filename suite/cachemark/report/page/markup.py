"""Rows of long tables as markup, written by hand: a page of many cases holds a hundred thousand cells, and a template engine takes
several times as long for each. Everything a user wrote passes :func:`text`."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import lru_cache
from html import escape

from markupsafe import Markup

from ...analysis import formatting as fmt
from ...analysis.case_group import CaseGroup
from ...analysis.columns import ColumnGroup, TableCell
from ...analysis.leaderboard import budget_cell, cells
from ...analysis.raw_samples import CaseFigure
from ...analysis.report_row import ReportRow
from ..charts.chart import Chart


def text(value: object, limit: int = 0) -> str:
    """Text for an element or an attribute: escaped, without control characters, cut to ``limit`` characters where that is above 0."""
    return _escaped(str(value), limit)


@lru_cache(maxsize=1 << 16)
def _escaped(value: str, limit: int) -> str:
    """Kept, because a page says most of what it says in several tables."""
    return escape(fmt.plain(value, limit))


def to_case(key: str, label: str) -> str:
    """A link to a case."""
    return f'<a href="#c-{text(key, 40)}"><bdi>{text(label, 40)}</bdi></a>'


def leaderboard_rows(rows: Sequence[ReportRow], shown: tuple[ColumnGroup, ...], before: str = "") -> Markup:
    """Rows of the leaderboard. Where another budget begins than the one ``before``, a
    row is the ``first``."""
    edges = {group.columns[0].key for group in shown if group.columns}  # columns with a rule at their left
    budgets = [before, *(row.case.budget for row in rows)]
    return Markup("\n".join(_leaderboard_row(row, shown, edges, row.case.role == "arm" and row.case.budget != before)
                            for row, before in zip(rows, budgets, strict=False)))


def _leaderboard_row(row: ReportRow, shown: tuple[ColumnGroup, ...], edges: Container[str], first: bool) -> str:
    case, budget = row.case, budget_cell(row)
    kind = f"{case.role}{'' if row.ok else ' off'}{' first' if first else ''}"
    whole = f' title="{text(row.method, 400)}"' if len(row.method) > 40 else ""
    role = f' <span class="role">{case.role}</span>' if case.role in ("floor", "numerics") else ""
    marks = "".join(f'<span class="mark {mark.tone}" title="{text(mark.reason, 400)}">{text(mark.text)}</span>' for mark in row.marks)
    marks = f'<span class="marks">{marks}</span>' if marks else ""
    kept = f"<small>{text(budget.under)}</small>" if budget.under else ""
    return (f'<tr class="{kind}"><td class="place">{row.place or ""}</td>'
            f'<th scope="row"><a href="#c-{case.key}"{whole}><bdi>{text(row.method, 40)}</bdi></a>{role}{marks}</th>'
            f'<td data-k="budget" data-v="{budget.order}">{text(budget.text, 20)}{kept}</td>'
            f'{"".join(_cell(cell, case.key, edges) for cell in cells(row, shown))}</tr>')


def _cell(cell: TableCell, key: str, edges: Container[str]) -> str:
    if cell.key == "status":
        status = text(cell.text.replace("_", " "))
        return (f'<td colspan="{cell.span}" class="reason"><span class="mark warn">{status}</span> '
                f"<bdi>{text(cell.under, 160)}</bdi></td>")
    if cell.span > 1:
        return (f'<td colspan="{cell.span}" class="reason edge"><span class="none">{text(cell.text)}:</span> '
                f"<bdi>{text(cell.under, 160)}</bdi></td>")
    order = "" if cell.order is None else f' data-v="{cell.order}"'
    edge = ' class="edge"' if cell.key in edges else ""
    shown = text(cell.text)
    shown = f'<span class="none">{shown}</span>' if cell.empty else f'<a class="n" tabindex="-1" href="#c-{key}">{shown}</a>'
    below = "".join(f"<small>{text(part)}</small>" for part in (cell.under, cell.delta) if part)
    return f'<td data-k="{cell.key}"{order}{edge}>{shown}{below}</td>'


def chart_lines(chart: Chart) -> Markup:
    """The rows of the table of a chart; the first cell leads to the case where the row is that of one."""
    heads = [to_case(key, line[0]) for key, line in zip(chart.keys, chart.rows, strict=True)] if chart.keys else [
        f"<bdi>{text(line[0], 40)}</bdi>" for line in chart.rows]
    return Markup("\n".join(_line(head, line[1:]) for head, line in zip(heads, chart.rows, strict=True)))


def _line(head: str, figures: Sequence[str], rest: str = "") -> str:
    return f'<tr><th scope="row">{head}</th>{"".join(f"<td class={_NUM}>{text(figure)}</td>" for figure in figures)}{rest}</tr>'


_NUM = '"num"'


def raw_lines(group: CaseGroup, names: Sequence[str]) -> Markup:
    """A row for each timed case of a group: medians of the metrics ``names``, its attention kernel and how long it took."""
    return Markup("\n".join(_raw_line(row, names) for row in group.rows if row.ok and row.timed))


def _raw_line(row: ReportRow, names: Sequence[str]) -> str:
    medians = [row.median(name) for name in names]
    figures = [fmt.DASH if value is None else fmt.with_unit(value, name) for name, value in zip(names, medians, strict=True)]
    took = fmt.seconds(row.outcome.seconds) if row.outcome.seconds else fmt.DASH
    kernel = text(row.outcome.facts.get("kernel") or fmt.DASH, 40)
    return _line(to_case(row.case.key, row.case.label), figures, f"<td><bdi>{kernel}</bdi></td><td class={_NUM}>{took}</td>")


def figure_lines(figures: Sequence[CaseFigure]) -> Markup:
    """The rows of the table of a case: each metric with its raw values."""
    return Markup("\n".join(
        f'<tr><th scope="row">{text(entry.title)}</th><td class={_NUM}>{text(entry.shown)}</td><td>{entry.as_}</td>'
        f'<td class={_NUM}>{entry.n}</td><td class="values">{entry.raw or "too many for this page"}</td></tr>' for entry in figures))
