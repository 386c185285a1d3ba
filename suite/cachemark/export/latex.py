"""Tables as LaTeX, drawn with booktabs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from .escape import for_latex
from .tables import NAME, Heading, Table, TableEntry, TableLine

REASON, NOTE = 300, 1000  # characters of sentences that are shown
ARROWS = {"lower": " $\\downarrow$", "higher": " $\\uparrow$"}
HEAD = "% Needs \\usepackage{booktabs}."


def latex(tables: Iterable[Table]) -> str:
    """Each table as a float with its reasons and notes below it. A document needs the package booktabs and nothing else: a character
    that its fonts lack is named, and names are cut to 60 characters."""
    return "\n\n".join([HEAD, *map(_one, tables)]) + "\n"


def _one(table: Table) -> str:
    blocks = "\n\\midrule\n".join("\n".join(_line(line, len(table.columns)) for line in block) for block in table.blocks)
    below = [rf"({number})~{for_latex(reason, REASON)}" for number, reason in enumerate(table.reasons, 1)]
    below += [for_latex(note, NOTE) for note in table.notes]
    return "\n".join([
        r"\begin{table}", r"\centering", rf"\caption{{{for_latex(table.title, NAME)}}}",
        rf"\begin{{tabular}}{{ll{'r' * len(table.columns)}}}",
        r"\toprule", *_heads(table.columns), r"\midrule", blocks, r"\bottomrule", r"\end{tabular}", "",
        r"{\footnotesize\raggedright", " \\par\n".join(below), r"\par}", r"\end{table}",
    ])  # fmt: skip


def _heads(columns: tuple[Heading, ...]) -> list[str]:
    """The groups with a rule under each, and the columns."""
    above, rules, start = ["", ""], [], 3
    for group, own in groupby(columns, key=lambda column: column.group):
        width = len(list(own))
        above.append(rf"\multicolumn{{{width}}}{{c}}{{{for_latex(group)}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    titles = ["method", "budget", *(for_latex(column.title) + ARROWS.get(column.better, "") for column in columns)]
    return [_row(above), " ".join(rules), _row(titles)]


def _row(texts: Iterable[str]) -> str:
    return " & ".join(texts) + r" \\"


def _line(line: TableLine, width: int) -> str:
    name = [for_latex(line.name, NAME), for_latex(line.budget, NAME)]
    if line.status:
        said = rf"\multicolumn{{{width}}}{{l}}{{\emph{{{for_latex(line.status, NAME)}}} ({line.reason})}}"
        return _row([*name, said])
    return _row([*name, *map(_entry, line.entries)])


def _entry(entry: TableEntry) -> str:
    text = for_latex(entry.shown)
    return rf"\textbf{{{text}}}" if entry.best else text
