"""Dataclasses that are stored as JSON tables: one check of types, and unknown keys are kept.

A key that is missing or null has its field's default; a field that is None is left out of the JSON. Keys that this version does not
know are kept and written again, and so is a table without a key that it needs, which is of another version."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

LARGEST = 2**63  # of an integer
Reader = Callable[[Any, str], Any]  # checks a value of JSON; the text is the path of its key


class BadField(ValueError):
    """Value of a stored record that has another type than its field."""

    def __init__(self, where: str, value: object, expected: str) -> None:
        super().__init__(f"{where} is {repr(value)[:60]}, not {expected}")


class OtherVersion(ValueError):
    """Table without a key that this version needs."""


def stored(meaning: str, unit: str = "", *, key: str = "", null: bool = False, column: str = "", better: str = "lower") -> Any:
    """Return an optional field with its meaning for the reference page, and its unit.

    ``key``: the key in JSON if it is not the field's name; ``null``: None is written as null instead of left out; ``column``: title of a
    report column of this number, in which ``better`` values are marked."""
    about = {"meaning": meaning, "unit": unit, "key": key, "null": null, "column": column, "better": better}
    return field(default=None, metadata=about)


def needed(meaning: str, unit: str = "", *, key: str = "") -> Any:
    """Return a field without a default, described as in :func:`stored`."""
    return field(metadata={"meaning": meaning, "unit": unit, "key": key})


@dataclass(frozen=True)
class StoredTable:
    """Base of stored tables; ``unknown`` holds the keys of newer versions."""

    unknown: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def to_json(self) -> dict[str, Any]:
        """Return the fields by key."""
        data = {key: _plain(value) for key, name, null in _keys(type(self)) if (value := getattr(self, name)) is not None or null}
        return {**data, **self.unknown}

    @classmethod
    def from_json(cls, data: Any, where: str = "") -> Self:
        """Invert :meth:`to_json`. Raises BadField with the path of a key and its value, if its type is wrong."""
        if not isinstance(data, Mapping):
            raise BadField(where or cls.__name__, data, "a table")
        readers, before = _readers(cls), f"{where}." if where else ""
        values, unknown = dict[str, Any](), dict[str, Any]()
        for key, value in data.items():
            if key not in readers:
                unknown[key] = value
            elif value is not None:
                name, reader = readers[key]
                try:
                    values[name] = reader(value, f"{before}{key}")
                except OtherVersion:
                    unknown[key] = value
        if any(each.name not in values for each in fields(cls) if each.default is MISSING and each.default_factory is MISSING):
            raise OtherVersion(where)
        return cls(**values, unknown=unknown)

    def __or__(self, other: StoredTable) -> Self:
        """Return this table with the fields that another one has recorded."""
        return replace(self, **other.recorded(), unknown={**self.unknown, **other.unknown})

    def recorded(self) -> dict[str, Any]:
        """Return the fields that are not None, by name."""
        return {name: value for _, name, _ in _keys(type(self)) if (value := getattr(self, name)) is not None}


def checked_fields(cls: type[Any], data: Any, where: str = "") -> dict[str, Any]:
    """Return the values of a dataclass's fields in a table; unknown keys are ignored.

    Raises BadField for another type.
    """
    readers, before = _readers(cls), f"{where}." if where else ""
    return {readers[key][0]: readers[key][1](value, f"{before}{key}") for key, value in _checked(Mapping, "a table", data, where).items()
            if key in readers}


def _key_list(cls: type[Any]) -> list[tuple[str, str, bool]]:
    """Return key and name of each field, and whether None is written."""
    return [(each.metadata.get("key") or each.name, each.name, each.metadata.get("null", False))
            for each in fields(cls) if each.name != "unknown"]


def _reader_table(cls: type[Any]) -> dict[str, tuple[str, Reader]]:
    """Return name and check of each field, by key."""
    hints = get_type_hints(cls)
    return {key: (name, _reader(hints[name])) for key, name, _ in _keys(cls)}


_keys: Callable[[Any], list[tuple[str, str, bool]]] = cache(_key_list)
_readers: Callable[[Any], dict[str, tuple[str, Reader]]] = cache(_reader_table)


def _reader(hint: Any) -> Reader:
    """Return the check of values of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (only,) = (_reader(each) for each in arguments if each is not type(None))
        return lambda value, where: None if value is None else only(value, where)
    if origin is Sequence:
        item, plain = _reader(arguments[0]), arguments[0] is float

        def listed(value: Any, where: str) -> list[Any]:
            values = _checked((list, tuple), "a list", value, where)
            if plain and set(map(type, values)) == {float} and all(map(math.isfinite, values)):
                return list(values)
            return [item(each, f"{where}.{number}") for number, each in enumerate(values)]

        return listed
    if origin is Mapping:
        item_of_table = _reader(arguments[1])
        return lambda value, where: {key: item_of_table(each, f"{where}.{key}")
                                     for key, each in _checked(Mapping, "a table", value, where).items()}
    if isinstance(hint, type) and issubclass(hint, StoredTable):
        return hint.from_json
    if is_dataclass(hint) and isinstance(hint, type):
        return lambda value, where: hint(**checked_fields(hint, value, where))
    if origin is tuple:
        item, size = _reader(arguments[0]), len(arguments)
        return lambda value, where: tuple(item(each, where) for each in _sized(value, size, where))
    if hint is Any:
        return lambda value, where: value
    kinds, expected = {str: ((str,), "a text"), bool: ((bool,), "true or false"), int: ((int,), "an integer"),
                       float: ((int, float), "a number")}[hint]
    return lambda value, where: _checked(kinds, expected, value, where)


def _sized(value: Any, size: int, where: str) -> Any:
    if len(_checked((list, tuple), f"a list of {size}", value, where)) != size:
        raise BadField(where, value, f"a list of {size}")
    return value


def _checked(kinds: type | tuple[type, ...], expected: str, value: Any, where: str) -> Any:
    numeric = (isinstance(value, bool) and kinds != (bool,)) or (isinstance(value, float) and not math.isfinite(value))
    if numeric or not isinstance(value, kinds) or (isinstance(value, int) and abs(value) > LARGEST):
        raise BadField(where, value, expected)
    return value


def _plain(value: Any) -> Any:
    """Return records as tables, and other sequences and mappings as lists and tables of them."""
    if isinstance(value, StoredTable):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
