"""Formatting of values in sentences, and of foreign texts on one line."""

from __future__ import annotations

import re

_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_TURNS = re.compile("[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
_BREAKS = re.compile("[\n\t\u2028\u2029]")
_COMMIT = re.compile(r"\b([0-9a-f]{12})(?:[0-9a-f]{28}|[0-9a-f]{52})\b")
_COMMAND = re.compile(r"^(\s*(?::(?=:)|#(?=#\[)))")


def percent(share: float, sign: str = "") -> str:
    """Format a fraction as percent with two digits: ``5.1 %``, from 100 on ``150 %``.

    With ``sign`` ``+``: ``+5.1 %``."""
    value = round(100 * share, 4) + 0.0  # no power of ten near nought, and no -0
    digits = ".0f" if abs(value) >= 99.5 else ".2g"
    return f"{value:{sign}{digits}} %"


def count(number: int, noun: str) -> str:
    """Format a number with its noun: ``1 alarm``, ``3 alarms``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def short_commits(text: object) -> str:
    """Return text with twelve digits of each full name of a commit."""
    return _COMMIT.sub(r"\1", str(text))


# -- texts of others ----------------------------------------------------------------------------------------------------
def plain(text: object, limit: int = 0) -> str:
    """Return text without control characters and lone surrogates, which XML does not allow.

    ``limit`` above 0 truncates it."""
    clean = str(text)
    if not clean.isprintable():  # fast path for nearly all texts
        clean = _UNFIT.sub(" ", clean)
    return clean if not limit or len(clean) <= limit else clean[: limit - 1].rstrip() + "…"


def on_one_line(text: object, limit: int = 0) -> str:
    """Return text without control characters, line breaks and bidirectional marks.

    ``limit`` above 0 truncates it."""
    return plain(" ".join(_TURNS.sub("", plain(text)).split()), limit)


def printed(text: object, limit: int = 0) -> str:
    """Return text as one line for a terminal or a CI log.

    Control characters, line breaks and bidirectional marks are removed; a GitHub command at the start (``::error::``, ``##[group]``) is
    broken up: ``: :error::``."""
    line = _BREAKS.sub(" ", _TURNS.sub("", plain(text)))
    return plain(_COMMAND.sub(r"\1 ", line), limit)


def shown(value: object, limit: int = 80) -> str:
    """Return the repr of a user's value, cut to ``limit`` characters, or its type if it has no repr."""
    try:
        return plain(repr(value), limit)
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists in lists without end
        return f"a huge {type(value).__name__}"
