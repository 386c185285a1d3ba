"""Functions that all cases of a process call, by identity: one that a method replaces computes for the cases after it too."""

from __future__ import annotations

import builtins
import hashlib
import json
import math
import os
import random
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

OURS = "cachemark."
TORCH = str(Path(torch.__file__).parent)
THEIRS: tuple[ModuleType, ...] = (torch, F, torch.linalg, torch.special, torch.fft, torch._C._nn, builtins, hashlib, json, math, os, random,
                                  time, zlib)
CHANGING = {"__abstractmethods__", "__annotations__", "__annotations_cache__", "__annotate_func__", "__doc__", "__slotnames__", "_abc_impl"}
"""Of a class: what Python itself fills in later."""
_MISSING = object()


class _Code(NamedTuple):
    """The inside of a function, which can be exchanged."""

    code: Any
    defaults: Any


@dataclass(frozen=True)
class Replaced:
    """One thing that is another now, or whose inside is (``code``), or that hides an inherited one (``before`` is missing then)."""

    owner: Any
    attribute: str
    before: Any = _MISSING
    code: _Code | None = None

    @property
    def name(self) -> str:
        if isinstance(self.owner, ModuleType):
            return f"{self.owner.__name__}.{self.attribute}"
        return f"{self.owner.__module__}.{self.owner.__qualname__}.{self.attribute}"

    def put_back(self) -> None:
        """Make it what it was."""
        with suppress(TypeError, AttributeError):  # a type of C that nobody can change back
            if self.before is _MISSING:
                delattr(self.owner, self.attribute)
                return
            if self.code is not None:
                self.before.__code__, self.before.__defaults__ = self.code
            setattr(self.owner, self.attribute, self.before)


class _Namespace(NamedTuple):
    """A module or a class as it stood. The lists run side by side: names of its functions, and their insides."""

    owner: Any
    ours: bool
    values: dict[str, Any]
    functions: list[str]
    codes: list[Any]
    defaults: list[Any]

    @classmethod
    def of(cls, owner: Any, ours: bool) -> _Namespace:
        values = dict(_watched(owner, ours))
        functions = [name for name, value in values.items() if isinstance(value, FunctionType)]
        return cls(owner, ours, values, functions, [values[n].__code__ for n in functions], [values[n].__defaults__ for n in functions])

    def replaced(self) -> Iterator[Replaced]:
        now = vars(self.owner)
        for name, before in self.values.items():
            if (value := now.get(name, _MISSING)) is not before and not _wrapped_by_torch(value, before):
                yield Replaced(self.owner, name, before)
        for name, code, defaults in zip(self.functions, self.codes, self.defaults, strict=True):
            if self.values[name].__code__ is not code or self.values[name].__defaults__ is not defaults:
                yield Replaced(self.owner, name, self.values[name], _Code(code, defaults))
        if len(now) != len(self.values):
            yield from (Replaced(self.owner, n) for n in now.keys() - self.values.keys() if _hides(self.owner, self.ours, n, now[n]))


class SharedFunctions:
    """The namespaces of torch, of the standard modules that figures come from, and of this package."""

    def __init__(self) -> None:
        self._namespaces: list[_Namespace] = []
        self._known = set[int]()
        self.extend()

    def extend(self) -> None:
        """Take in what has been imported since."""
        for owner, ours in _owners():
            if id(owner) not in self._known:
                self._known.add(id(owner))
                self._namespaces.append(_Namespace.of(owner, ours))

    def replaced(self) -> list[Replaced]:
        """Everything that is another than it was."""
        return [one for namespace in self._namespaces for one in namespace.replaced()]


def _owners() -> Iterator[tuple[Any, bool]]:
    """Namespaces, each with whether it is one of this package."""
    yield from ((module, False) for module in THEIRS)
    yield from ((cls, False) for cls in (torch.Tensor, torch._C.TensorBase))
    yield from ((cls, False) for cls in vars(torch.nn).values() if isinstance(cls, type))
    for name, module in list(sys.modules.items()):
        if name.startswith(OURS) and isinstance(module, ModuleType):
            yield module, True
            yield from ((cls, True) for cls in vars(module).values() if isinstance(cls, type) and cls.__module__ == name)


def _watched(owner: Any, ours: bool) -> Iterator[tuple[str, Any]]:
    """Entries of a namespace that nobody has reason to change: all of ours, of others what can be called."""
    for name, value in list(vars(owner).items()):
        special = name.startswith("__") and name.endswith("__")
        if name not in CHANGING and ((ours and not (special and isinstance(owner, ModuleType))) or _computes(value)):
            yield name, value


def _computes(value: Any) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod)


def _wrapped_by_torch(now: Any, before: Any) -> bool:
    """True where torch itself has put a function of its own around one of its own, as its compiler does when it is first imported, and
    when it first compiles."""
    if now is _MISSING or not str(getattr(getattr(now, "__code__", None), "co_filename", "")).startswith(TORCH):
        return False
    return getattr(now, "__wrapped__", None) is before or any(_content(cell) is before for cell in getattr(now, "__closure__", None) or ())


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # of a cell that is empty
        return _MISSING


def _hides(owner: Any, ours: bool, name: str, value: Any) -> bool:
    """True where something new takes the place of what was found elsewhere: in a base class, or among the builtins."""
    special = name.startswith("__") and name.endswith("__")
    if name in CHANGING or not (_computes(value) or (ours and not special)):
        return False
    if isinstance(owner, ModuleType):
        return ours and hasattr(builtins, name) and not special
    return name == "__getattr__" or any(name in vars(base) for base in owner.__mro__[1:])
