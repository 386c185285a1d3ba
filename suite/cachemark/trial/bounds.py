"""Limits on the length of logs, footnotes and sources from other people's code. Words are not split."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

LOG = 20_000  # letters of a log
LINE = 2_000  # and of each of its lines
NOTE, NOTES = 1_000, 20  # letters of a footnote or a source, and how many footnotes there may be
WORD = 200  # letters of a word that are left out with the rest of it
_BEGUN, _LEFT = re.compile(rf"\S{{0,{WORD}}}\Z"), re.compile(rf"\A\S{{0,{WORD}}}")


def bounded_log(text: str) -> str:
    """Shorten long lines and the middle of a long log, and note what was omitted."""
    if len(text) > 2 * LOG:  # before it is split into lines: there may be millions
        text = _cut(text, 2 * LOG)
    return _cut("\n".join(_beginning(line, LINE) for line in text.split("\n")), LOG)


def bounded_text(value: Any) -> str:
    """Return a method's text, shortened; for another type, a note of it."""
    return _beginning(value if isinstance(value, str) else f"(of type {type(value).__name__}, not a text)", NOTE)


def bounded_notes(value: Any) -> list[str]:
    """Return a method's footnotes, shortened; a single text counts as one."""
    if isinstance(value, str):
        return [bounded_text(value)]
    if not isinstance(value, Iterable):
        return [bounded_text(value)] if value is not None else []
    notes: list[str] = []
    for note in value:
        if len(notes) == NOTES:
            return [*notes, f"(more than {NOTES} footnotes)"]
        notes.append(bounded_text(note))
    return notes


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    first, last = _BEGUN.sub("", text[: most // 2]), last_words(text, most // 2)
    return f"{first}\n… {len(text) - len(first) - len(last)} letters are left out …\n{last}"


def last_words(text: str, most: int) -> str:
    """Return the end of a text, at most ``most`` characters."""
    return text if len(text) <= most else _LEFT.sub("", text[-most:])


def _beginning(text: str, most: int) -> str:
    """Return the beginning of a text, and note what was omitted."""
    if len(text) <= most:
        return text
    start = _BEGUN.sub("", text[:most])
    return f"{start}… ({len(text) - len(start)} more letters)"
