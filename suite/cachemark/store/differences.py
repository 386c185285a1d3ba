"""Differences between nested settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def flat(values: Mapping[str, Any], prefix: str = "", dash: str = " ") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings: ``{"gpu": {"clock": 1}}`` yields ``("gpu clock", 1)``."""
    for name, value in values.items():
        path = f"{prefix}{dash}{name}" if prefix else str(name)
        if isinstance(value, Mapping):
            yield from flat(value, path, dash)
        else:
            yield path, value


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the dotted names of fields that differ with both values; None for a missing field.

    Lists are compared as a whole, and a tuple equals a list.
    """
    old, new = ({name: list(v) if isinstance(v, tuple) else v for name, v in flat(side, dash=".")} for side in (then, now))
    return {name: (old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)}
