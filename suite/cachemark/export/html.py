"""Tables and images as fragments of HTML, for notebooks. Everything a user wrote is escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape

from ..core.result import Outcome
from .escape import on_one_line
from .tables import NAME, Table, TableEntry, TableLine

REASON = 300  # characters of a sentence that are shown


def html(tables: Iterable[Table]) -> str:
    """Each table under its title, with numbered reasons below it for what is missing."""
    return "".join(map(_table, tables))


def case_html(outcome: Outcome, images: bytes | None) -> str:
    """A case: its name, its status, and ``images`` (a PNG) or the reason why there are none."""
    head = f"<p><b>{_text(outcome.case.full_title)}</b>: {_text(outcome.status)}</p>"
    if images is None:
        return f"{head}<p>{_text(outcome.log or 'No images were kept.', REASON)}</p>"
    png = base64.b64encode(images).decode()
    return (f'<figure>{head}<img alt="images of {_text(outcome.case.label)}" src="data:image/png;base64,{png}"/>'
            "<figcaption>Above: the full cache; below: this case, at the same seeds.</figcaption></figure>")


def _text(value: object, limit: int = NAME) -> str:
    return escape(on_one_line(value, limit))


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_text(title)}</th>' for title in ("method", "budget", *(c.title for c in table.columns)))
    body = "".join(f"<tr>{_line(line, len(table.columns))}</tr>" for block in table.blocks for line in block)
    below = "".join(f"<li>{_text(reason, REASON)}</li>" for reason in table.reasons)
    reasons = f"<ol>{below}</ol>" if below else ""
    return f"<table><caption>{_text(table.title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{reasons}"


def _line(line: TableLine, width: int) -> str:
    name = f'<th scope="row">{_text(line.name)}</th><td>{_text(line.budget)}</td>'
    if line.status:
        return f'{name}<td colspan="{width}">{_text(line.status)} ({line.reason})</td>'
    return name + "".join(f"<td>{_entry(entry)}</td>" for entry in line.entries)


def _entry(entry: TableEntry) -> str:
    text = _text(entry.shown)
    return f"<b>{text}</b>" if entry.best else text
