"""Differences between two JSON objects, field by field: the reason for which a case runs again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted name of each field that differs, with its two values; None where one side has no such field.

    Lists are compared as a whole, and a tuple equals a list, since both are one thing in JSON.
    """
    old, new = dict(_flat(then)), dict(_flat(now))
    return {name: (old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)}


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", list(item) if isinstance(item, tuple) else item
