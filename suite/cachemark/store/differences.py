"""Nested settings and facts as one level, and what differs between two of them: the reason for which a case runs again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def flat(values: Mapping[str, Any], prefix: str = "", dash: str = " ") -> Iterator[tuple[str, Any]]:
    """Nested mappings as one level, each name with those around it: ``{"gpu": {"clock": 1}}`` gives ``gpu clock``."""
    for name, value in values.items():
        path = f"{prefix}{dash}{name}" if prefix else str(name)
        if isinstance(value, Mapping):
            yield from flat(value, path, dash)
        else:
            yield path, value


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted name of each field that differs, with its two values; None where one side has no such field.

    Lists are compared as a whole, and a tuple equals a list, since both are one thing in JSON.
    """
    old, new = ({name: list(v) if isinstance(v, tuple) else v for name, v in flat(side, dash=".")} for side in (then, now))
    return {name: (old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)}
