"""Errors of a plan, with file and line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ..core.errors import BadPlan
from ..core.units import is_metric

Kinds = Mapping[str, type[BaseModel]]  # of tables, by name; the empty name is the plan itself
WORD = "literal_error"  # pydantic's error type for a value that is none of the allowed words
DEEPEST = 20  # levels of a parameter's lists and tables
OTHER_TYPE = ("_type", WORD)  # suffixes of pydantic's error types for a value of another type


def shallow(value: Any) -> Any:
    """Return a parameter. Raises ValueError if its lists and tables are nested more than ``DEEPEST`` deep."""
    level, depth = [value], 0
    while level := [item for each in level if isinstance(each, list | dict)
                    for item in (each.values() if isinstance(each, dict) else each)]:
        if (depth := depth + 1) > DEEPEST:
            raise ValueError(f"lists and tables are nested more than {DEEPEST} deep")
    return value


def plan_error(path: Path, text: str, data: Mapping[str, Any], error: ValidationError, kinds: Kinds) -> BadPlan:
    """Return the first fault of a plan with its line. ``data`` is the parsed ``text``."""
    keys, fault, words = _first_fault(data, error)
    missing = fault["type"] == "missing"
    where = f"{path}:{line(text, keys[:-1] if missing else keys)}"
    if fault["type"] == "extra_forbidden":
        tables = [key for key in keys[:-1] if isinstance(key, str) and key in kinds]
        known_keys = sorted(kinds[tables[-1] if tables else ""].model_fields)
        near = difflib.get_close_matches(str(keys[-1]), known_keys, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        return BadPlan(f"{where}: unknown key {keys[-1]!r}.", remedy=f"{hint}Known here: {', '.join(known_keys)}.")
    return BadPlan(f"{where}: {_described(keys, fault, words)}", remedy="See docs/reference/plan-file.md.")


def problem_of(data: Mapping[str, Any], error: ValidationError, skipped: Sequence[str | int] = ()) -> str:
    """Describe the first fault of a plan, without its file and the first ``skipped`` keys of its path."""
    keys, fault, words = _first_fault(data, error)
    return _described(keys[len(skipped) :] if keys[: len(skipped)] == [*skipped] else keys, fault, words)


def _described(keys: Sequence[str | int], fault: Any, allowed: str) -> str:
    value = "" if fault["type"] == "missing" else f" It is {_given(fault['input'])}."
    problem = fault["msg"][:1].lower() + fault["msg"][1:]
    return f"{'.'.join(map(str, keys))}: {problem}{allowed}.{value}"


def _given(value: Any) -> str:
    """Return the value in quotes, truncated."""
    try:
        return repr(str(value)[:80])
    except ValueError:  # an integer of more digits than Python writes
        return "a huge integer"


def _first_fault(data: Any, error: ValidationError) -> tuple[list[str | int], Any, str]:
    """Return the first fault, its keys, and other allowed words.

    If a value may have several types, each type has faults of its own: the deepest belongs to the intended type, and among those the one
    that requires no other type. An allowed word, such as "max" for a number, is a type of its own."""
    faults = [(_keys(data, fault), fault) for fault in error.errors()]
    first = faults[0][0]
    keys, fault = max((f for f in faults if f[0][: len(first)] == first),
                      key=lambda f: (len(f[0]), not f[1]["type"].endswith(OTHER_TYPE)))
    words = [other["ctx"]["expected"] for place, other in faults if place == keys and other is not fault and other["type"] == WORD]
    return keys, fault, "".join(f", or {word}" for word in words)


def _keys(data: Any, fault: Any) -> list[str | int]:
    """Return the keys of a fault's location, without pydantic's names of types."""
    keys: list[str | int] = []
    for part in fault["loc"]:
        if (isinstance(data, dict) and part in data) or (isinstance(data, list) and isinstance(part, int)):
            keys.append(part)
            data = data[part]
    return [*keys, fault["loc"][-1]] if fault["type"] == "missing" else keys


def line(text: str, keys: Sequence[str | int]) -> int:
    """Return the line number of the last of ``keys`` that is written in the file."""
    lines, at = text.splitlines(), 0
    end = len(lines)
    for number, key in enumerate(keys):
        if isinstance(key, int) and number:
            heads = [i for i, line in enumerate(lines) if re.match(rf"\s*\[\[\s*{re.escape(str(keys[number - 1]))}\s*\]\]", line)]
            if key < len(heads):
                at, end = heads[key], [*heads, len(lines)][key + 1]
        else:
            path, name = r"""(?:[\w"'-]+\s*\.\s*)*""", rf"""["']?{re.escape(str(key))}["']?"""
            pattern = rf"\s*(?:\[\[?\s*{path}{name}\s*\]|{path}{name}\s*[=.])"
            at = next((i for i in range(at, end) if re.match(pattern, lines[i])), at)
    return at + 1


def known_metric(name: str) -> str:
    """Return the name of a metric. Raises ValueError for another, for a validator."""
    if not is_metric(name):
        raise ValueError(f"no metric is called {name!r}; see docs/reference/metrics.md")
    return name
