"""Bounds on what other people's code says: logs, footnotes and sources reach the store, the report and the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

LOG = 20_000  # letters of a log
LINE = 2_000  # and of each of its lines
NOTE, NOTES = 1_000, 20  # letters of a footnote or a source, and how many footnotes there may be


def bounded_log(text: str) -> str:
    """A log of bounded length: of too long a line the beginning, of too long a log its beginning and its end, and what was left out."""
    if len(text) > 2 * LOG:  # before it is split into lines: there may be millions
        text = _cut(text, 2 * LOG)
    lines = (line if len(line) <= LINE else f"{line[:LINE]}… ({len(line) - LINE} more letters)" for line in text.split("\n"))
    return _cut("\n".join(lines), LOG)


def bounded_text(value: Any) -> str:
    """A text that a method gives, or what it gives instead, as one."""
    text = value if isinstance(value, str) else f"(of type {type(value).__name__}, not a text)"
    return text if len(text) <= NOTE else f"{text[:NOTE]}… ({len(text) - NOTE} more letters)"


def bounded_notes(value: Any) -> list[str]:
    """The footnotes that a method gives; one text counts as one."""
    if isinstance(value, str):
        return [bounded_text(value)]
    if not isinstance(value, Iterable):
        return [bounded_text(value)] if value is not None else []
    found: list[str] = []
    for note in value:
        if len(found) == NOTES:
            return [*found, f"(more than {NOTES} footnotes)"]
        found.append(bounded_text(note))
    return found


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} letters are left out …\n{text[-half:]}"
