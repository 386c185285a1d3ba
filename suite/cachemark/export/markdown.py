"""Tables as Markdown of GitHub's kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .escape import for_markdown
from .tables import NAME, Heading, Table, TableEntry, TableLine

REASON, NOTE = 300, 1000  # characters of sentences that are shown
ARROWS = {"lower": " ↓", "higher": " ↑"}


def markdown(tables: Iterable[Table]) -> str:
    """Each table under a heading, with numbered reasons for what is missing and notes below it. Names are cut to 60 characters."""
    return "\n\n".join(_one(table) for table in tables) + "\n"


def rows(lines: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; the first line is its head, whose first two columns hold text and the others figures. Texts are escaped."""
    head, *body = lines
    rule = [":--" if column < 2 else "--:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *body))


def _one(table: Table) -> str:
    head = ["method", "budget", *map(_head, table.columns)]
    body = [_line(line, len(table.columns)) for block in table.blocks for line in block]
    below = [f"- ({number}) {for_markdown(reason, REASON)}" for number, reason in enumerate(table.reasons, 1)]
    below += [f"- {for_markdown(note, NOTE)}" for note in table.notes]
    return f"### {for_markdown(table.title, NAME)}\n\n{rows([head, *body])}\n\n" + "\n".join(below)


def _head(column: Heading) -> str:
    return for_markdown(column.title) + ARROWS.get(column.better, "")


def _line(line: TableLine, width: int) -> list[str]:
    name = [for_markdown(line.name, NAME), for_markdown(line.budget, NAME)]
    if line.status:
        return [*name, f"{for_markdown(line.status, NAME)} ({line.reason})", *[""] * (width - 1)]
    return [*name, *map(_entry, line.entries)]


def _entry(entry: TableEntry) -> str:
    text = for_markdown(entry.shown)
    return f"**{text}**" if entry.best else text
