"""Validation of files that people edit, before their values are used.

An error is one line with file and key.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from .errors import CachemarkError
from .units import is_finite
from .wording import plain, shown

LARGEST = 200_000_000  # bytes of a file
LONGEST = 4_000  # characters of a text on one line
_BREAKS = re.compile("[\n\r\t\x85\u2028\u2029]")


@dataclass(frozen=True)
class Expectation:
    """A rule for a value, in words and as a function."""

    expected: str
    fits: Callable[[Any], bool]


def number(least: float = -math.inf, most: float = math.inf, *, whole: bool = False) -> Expectation:
    """Return the rule for a finite number from ``least`` to ``most``."""
    number_type = int if whole else (int, float)
    ends = [f"{word} {end:g}" for word, end in (("at least", least), ("at most", most)) if math.isfinite(end)]
    rule = f"a {'whole' if whole else 'finite'} number{' of ' if ends else ''}{' and '.join(ends)}"
    return Expectation(rule, lambda value: isinstance(value, number_type) and not isinstance(value, bool)
                       and least <= value <= most and is_finite(value))


def one_of(*words: str) -> Expectation:
    """Return the rule for one of these words."""
    return Expectation(f"one of {', '.join(repr(word) for word in words)}", lambda value: isinstance(value, str) and value in words)


def maybe(rule: Expectation, nothing: object) -> Expectation:
    """Return a rule that ``nothing`` (None or an empty text) meets too."""
    word = {None: "null", "": "an empty text"}.get(nothing, repr(nothing))  # type: ignore[call-overload]
    return Expectation(f"{rule.expected}, or {word}", lambda value: value == nothing or rule.fits(value))


def many(rule: Expectation, least: int = 0) -> Expectation:
    """Return the rule for a list of at least ``least`` values that meet ``rule``."""
    return Expectation(f"a list of at least {least}, each {rule.expected}",
                lambda value: isinstance(value, list) and len(value) >= least and all(map(rule.fits, value)))


def _is_moment(value: object) -> bool:
    try:
        return isinstance(value, str) and 1970 <= datetime.fromisoformat(value).year < 9999
    except ValueError:
        return False


PROSE = Expectation("a text", lambda value: isinstance(value, str))
LINE = Expectation(
    f"a text on one line, of at most {LONGEST} characters and without control characters",
    lambda value: isinstance(value, str) and len(value) <= LONGEST and not _BREAKS.search(value) and plain(value) == value)
DAY = Expectation("a date from 1970 on, such as 2026-12-31", lambda value: _is_moment(value) and len(value) == len("2026-12-31"))
MOMENT = Expectation("a date from 1970 on, such as 2026-12-31, with or without a time", _is_moment)
TABLE = Expectation("a table", lambda value: isinstance(value, dict))


@dataclass(frozen=True)
class EditedFile:
    """A file by its name, with the error class and the remedy for any fault in it."""

    source: str
    error: type[CachemarkError]
    remedy: str = "Fix that value, or take the file from version control."

    def json(self, text: str) -> Any:
        """Parse JSON. NaN and infinities are errors."""
        try:
            return json.loads(text, parse_constant=_refuse)
        except json.JSONDecodeError as error:
            cut = not text[error.pos:].strip() or "Unterminated" in error.msg
            what = "is cut off" if cut else "is not JSON"
            raise self.wrong(f"{what}: {error.msg} at line {error.lineno}, column {error.colno}.") from error
        except RecursionError as error:
            raise self.wrong("is nested too deep.") from error
        except ValueError as error:
            raise self.wrong(f"is not JSON that we write: {error}.") from error

    def check(
        self, table: Any, rules: Mapping[str, Expectation], where: str = "", *, optional: Collection[str] = (), closed: bool = False,
    ) -> None:
        """Raise if a value breaks its rule, a key is missing, or a ``closed`` table has an unknown key.

        ``optional``: keys that may be missing. ``where``: the keys that lead to the table, each followed by a dot."""
        if not isinstance(table, Mapping):
            raise self.wrong_value(where.rstrip("."), table, TABLE)
        for name, rule in rules.items():
            if name in table and not rule.fits(table[name]):
                raise self.wrong_value(f"{where}{name}", table[name], rule)
            if name not in table and name not in optional:
                raise self.wrong(f"lacks {where}{name}: {rule.expected} is expected.")
        if closed and (odd := [name for name in table if name not in rules]):
            raise self.wrong(f"has {where}{odd[0]}, which is not a key here. Known: {', '.join(rules)}.")

    def wrong_value(self, key: str, value: object, rule: Expectation) -> CachemarkError:
        """Return the error for a value that breaks a rule."""
        return self.wrong(f"has {key} = {shown(value)}; {rule.expected} is expected.")

    def wrong(self, what: str) -> CachemarkError:
        """Return the error about the file."""
        return self.error(f"{self.source} {what}", remedy=self.remedy)


def text_of(path: Path, error: type[CachemarkError]) -> str:
    """Read a text file. Raises ``error``, also for anything but an ordinary file."""
    remedy = "Use the path of an ordinary file, or take it from version control."
    try:
        if not path.is_file():
            path.stat()
            raise error(f"{path} cannot be read: it is not an ordinary file.", remedy=remedy)
        if path.stat().st_size > LARGEST:
            raise error(f"{path} has more than {LARGEST} bytes.", remedy=remedy)
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as fault:
        raise error(f"{path} is not text.", remedy=remedy) from fault
    except OSError as fault:
        raise error(f"{path} cannot be read: {fault.strerror}.", remedy=remedy) from fault


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is none of its words")
