"""Tables as LaTeX drawn with booktabs, as Markdown of GitHub's kind, and as fragments of HTML for notebooks. Everything a user wrote is
escaped, and names are cut to 60 characters."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from html import escape

from ..core.result import Outcome
from ..core.wording import on_one_line
from .escape import for_latex, for_markdown, slug
from .tables import NAME, Table, TableLine

REASON, NOTE = 300, 1000  # characters of sentences that are shown
ARROWS = {"lower": "↓", "higher": "↑"}


def latex(tables: Iterable[Table]) -> str:
    """Each table as a float with its reasons and notes below it. A document needs the package booktabs and nothing else: a character
    that its fonts lack is named."""
    return "\n\n".join(["% Needs \\usepackage{booktabs}.", *map(_latex, tables)]) + "\n"


def markdown(tables: Iterable[Table]) -> str:
    """Each table under a heading, with numbered reasons for what is missing and notes below it."""
    return "\n\n".join(map(_markdown, tables)) + "\n"


def html(tables: Iterable[Table]) -> str:
    """Each table under its title, with numbered reasons below it for what is missing."""
    return "".join(map(_html, tables))


def _titles(table: Table, text: Callable[[str], str]) -> list[str]:
    """The titles of all columns, those of figures with their directions."""
    return ["method", "budget", *(text(f"{column.heading} {ARROWS[column.better]}") for column in table.columns)]


def _cells(line: TableLine, text: Callable[[str, int], str], bold: str) -> list[str]:
    """The name, the budget and the figures of a row, those that are best in ``bold``."""
    figures = ((text(entry.with_margin, NAME), entry.best) for entry in line.entries)
    return [text(line.name, NAME), text(line.budget, NAME), *(bold.format(figure) if best else figure for figure, best in figures)]


# -- LaTeX ------------------------------------------------------------------------------------------------------------
def _latex(table: Table) -> str:
    blocks = "\n\\midrule\n".join("\n".join(_latex_line(line, len(table.columns)) for line in block) for block in table.blocks)
    below = [rf"({number})~{for_latex(reason, REASON)}" for number, reason in enumerate(table.reasons, 1)]
    below += [for_latex(note, NOTE) for note in table.notes]
    return "\n".join([
        r"\begin{table}", r"\centering", rf"\caption{{{for_latex(table.title, NAME)}}}",
        rf"\label{{tab:{slug(table.title) or 'cachemark'}}}",
        rf"\begin{{tabular}}{{ll{'r' * len(table.columns)}}}",
        r"\toprule", *_latex_groups(table), _latex_row(_titles(table, for_latex)), r"\midrule", blocks, r"\bottomrule", r"\end{tabular}",
        "", r"{\footnotesize\raggedright", " \\par\n".join(below), r"\par}", r"\end{table}",
    ])  # fmt: skip


def _latex_groups(table: Table) -> tuple[str, str]:
    """The headings of groups of columns, and a rule under each."""
    above, rules, start = ["", ""], [], 3
    for group in table.groups:
        end = start + len(group.columns) - 1
        above.append(rf"\multicolumn{{{len(group.columns)}}}{{c}}{{{for_latex(group.title)}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{end}}}")
        start = end + 1
    return _latex_row(above), " ".join(rules)


def _latex_row(texts: Iterable[str]) -> str:
    return " & ".join(texts) + r" \\"


def _latex_line(line: TableLine, width: int) -> str:
    failed = [rf"\multicolumn{{{width}}}{{l}}{{\emph{{{for_latex(line.status, NAME)}}} ({line.reason})}}"] if line.status else []
    return _latex_row([*_cells(line, for_latex, r"\textbf{{{}}}"), *failed])


# -- Markdown ---------------------------------------------------------------------------------------------------------
def markdown_rows(lines: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; the first line is its head, whose first two columns hold text and the others figures. Texts are escaped."""
    head, *body = lines
    rule = [":--" if column < 2 else "--:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *body))


def _markdown(table: Table) -> str:
    body = [_markdown_line(line, len(table.columns)) for block in table.blocks for line in block]
    below = [f"- ({number}) {for_markdown(reason, REASON)}" for number, reason in enumerate(table.reasons, 1)]
    below += [f"- {for_markdown(note, NOTE)}" for note in table.notes]
    rows = markdown_rows([_titles(table, for_markdown), *body])
    return f"### {for_markdown(table.title, NAME)}\n\n{rows}\n\n" + "\n".join(below)


def _markdown_line(line: TableLine, width: int) -> list[str]:
    failed = [f"{for_markdown(line.status, NAME)} ({line.reason})", *[""] * (width - 1)] if line.status else []
    return [*_cells(line, for_markdown, "**{}**"), *failed]


# -- HTML -------------------------------------------------------------------------------------------------------------
def case_html(outcome: Outcome, images: bytes | None) -> str:
    """A case: its name, its status, and ``images`` (a PNG) or the reason why there are none."""
    head = f"<p><b>{_for_html(outcome.case.full_title)}</b>: {_for_html(outcome.status)}</p>"
    if images is None:
        return f"{head}<p>{_for_html(outcome.reason or 'No images were kept.', REASON)}</p>"
    png = base64.b64encode(images).decode()
    return (f'<figure>{head}<img alt="images of {_for_html(outcome.case.label)}" src="data:image/png;base64,{png}"/>'
            "<figcaption>Above: the full cache; below: this case, at the same seeds.</figcaption></figure>")


def _for_html(text: object, limit: int = NAME) -> str:
    return escape(on_one_line(text, limit))


def _html(table: Table) -> str:
    head = "".join(f'<th scope="col">{_for_html(title)}</th>' for title in ("method", "budget", *(c.heading for c in table.columns)))
    body = "".join(f"<tr>{_html_line(line, len(table.columns))}</tr>" for block in table.blocks for line in block)
    below = "".join(f"<li>{_for_html(reason, REASON)}</li>" for reason in table.reasons)
    reasons = f"<ol>{below}</ol>" if below else ""
    return f"<table><caption>{_for_html(table.title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{reasons}"


def _html_line(line: TableLine, width: int) -> str:
    name, *cells = _cells(line, _for_html, "<b>{}</b>")
    failed = f'<td colspan="{width}">{_for_html(line.status)} ({line.reason})</td>' if line.status else ""
    return f'<th scope="row">{name}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + failed
