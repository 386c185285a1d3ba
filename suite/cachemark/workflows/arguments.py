"""Labels, seeds and prompts as people have them: of Python, NumPy, torch or pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from ..contract.method import Method
from ..core.errors import BadParameter, BadPlan, UnknownName
from ..methods.registry import METHODS


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


def method_table(method: Any) -> dict[str, Any]:
    """Return a method as a plan writes it: its ``name``, and parameters that differ from their defaults.

    ``method``: a name, a class, or an instance. Raises BadParameter for anything else, and UnknownName for a class without a name.
    """
    if isinstance(method, str):
        return {"name": method}
    cls = method if isinstance(method, type) else type(method)
    if not issubclass(cls, Method):
        raise BadParameter(f"A method is a name or a method object, not {cls.__name__}.", remedy='Write method="window", budget="1/2".')
    if cls.name not in METHODS or METHODS.get(cls.name) is not cls:
        raise UnknownName(f"The class {cls.__name__} is not registered as a method.", remedy='Decorate it with @cm.method("a name").')
    if isinstance(method, type):
        return {"name": cls.name}
    defaults = {each.name: each.default_factory() if each.default_factory is not MISSING else each.default for each in fields(cls)}
    return {"name": cls.name, **{name: value for name, value in method.parameters().items() if value != defaults[name]}}


def _items(argument: str, value: Any) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return [value]
    return [plain(item) for item in value]
