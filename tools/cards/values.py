"""The reference page of the values of an outcome beside its samples, from the fields that store them."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from cachemark.core.facts import GROUPS
from cachemark.core.stored_table import StoredTable

HEAD = """# Stored values

An outcome has samples of [metrics](metrics.md) and the values below, in JSON one flat table `facts` of the outcome. A value that was not
recorded is absent. Keys of newer versions are kept, and a value of another type than stated makes the outcome unreadable.

`make docs` writes this page from `core/facts.py`. A new value is a field there and the line that fills it; readers use
`outcome.facts.NAME`.
"""
TYPES = {"str": "text", "int": "integer", "float": "number", "bool": "boolean", "Any": "any"}


def values_page() -> str:
    """Return the page: a section for each writer, and one for each table within the values."""
    tables = list(dict.fromkeys(table for group in GROUPS for table in _within(group)))
    sections = [_section(group, f"Filled by `{getattr(group, 'writer', '')}`.") for group in GROUPS]
    return "\n".join([HEAD, *sections, "## Tables within the values\n", *(_section(table, "", "###") for table in tables)])


def _section(table: type[StoredTable], writer: str, level: str = "##") -> str:
    about = " ".join(filter(None, ((table.__doc__ or "").splitlines()[0], writer)))
    hints = get_type_hints(table)
    rows = [f"- `{each.metadata['key'] or each.name}` ({', '.join(filter(None, (_type(hints[each.name]), each.metadata['unit'])))}): "
            f"{each.metadata['meaning']}" for each in fields(table) if "meaning" in each.metadata]
    return "\n".join([f"{level} {table.__name__}\n", f"{about}\n", *rows, ""])


def _type(hint: Any) -> str:
    """Return a type in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _type(next(each for each in arguments if each is not type(None)))
    if origin is not None:
        return f"list of {_type(arguments[0])}" if len(arguments) == 1 else f"table of {_type(arguments[1])}"
    if isinstance(hint, type) and issubclass(hint, StoredTable):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return TYPES[getattr(hint, "__name__", "Any")]


def _within(table: type[StoredTable]) -> Iterator[type[StoredTable]]:
    """Yield the tables that the fields of a table hold, at any depth."""
    for hint in get_type_hints(table).values():
        yield from _tables(hint)


def _tables(hint: Any) -> Iterator[type[StoredTable]]:
    if isinstance(hint, type) and issubclass(hint, StoredTable):
        yield hint
        yield from _within(hint)
    for argument in get_args(hint):
        yield from _tables(argument)
