"""Labels, seeds and prompts as people have them: numbers and sequences of Python, NumPy, torch or pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..core.errors import BadPlan


def plain(value: Any) -> Any:
    """Return a value of NumPy, torch or pandas, also inside lists and mappings, as Python's own."""
    if callable(convert := getattr(value, "tolist", None)):  # arrays, tensors, series, and their scalars
        return plain(convert()) if type(converted := convert()) is list else converted
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def numbers(argument: str, value: Any) -> int | list[int] | None:
    """Return one integer, or a list of them.

    Raises BadPlan for anything else, such as 3.0, True or a text.
    """
    value = plain(value)
    if value is None or type(value) is int:
        return value
    items = value if isinstance(value, list) else _items(argument, value)
    for item in items:
        if isinstance(item, str):
            kind = "class numbers" if argument == "labels" else "whole numbers"
            raise BadPlan(f"{argument} are {kind}, not text: {item[:60]!r}.", remedy="Pass texts as prompts=.")
        if type(item) is not int:
            raise BadPlan(f"{argument} are whole numbers, and {str(item)[:60]} is of type {type(item).__name__}.",
                          remedy=f"Pass an integer or a sequence of integers as {argument}=.")
    return items


def texts(value: Any) -> list[str]:
    """Return prompts as a list. Raises BadPlan for anything but a text or texts."""
    value = plain(value)
    if value is None:
        return []
    items = [value] if isinstance(value, str) else value if isinstance(value, list) else _items("prompts", value)
    for item in items:
        if not isinstance(item, str):
            raise BadPlan(f"prompts are texts, and {str(item)[:60]} is of type {type(item).__name__}.",
                          remedy="Pass a text or a sequence of texts as prompts=.")
    return items


def _items(argument: str, value: Any) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return [value]
    return [plain(item) for item in value]
