"""Tensors that a method keeps: all that can be reached from it, from its class and from the modules of its plug-in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

from torch import Tensor

from ..cache.arena import Memory
from ..contract.method import Method
from ..core.plugin_modules import MODULE, plugin_of
from .driver import Watched

DEEPEST = 12  # things inside one another


def outside(method: Method, memory: Memory) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors that a method holds and its memory does not. Those of its class and of its plug-in's modules are
    looked at too, since there they would last."""
    inside = set(memory.pointers().values())
    found = {name: tuple(tensor.shape) for name, tensor in kept(method)
             if tensor.numel() and place(tensor) not in inside}
    return sorted(found.items())


def kept(method: Method) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that can be reached, with how it is called. Its memory, and what is built in, are left out."""
    known: dict[int, Any] = {}  # the things themselves too, so that no later one has their number
    yield from _walk("", vars(method), known, 0)
    for cls in type(method).__mro__:
        if plugin_of(cls.__module__).startswith(MODULE) and Watched not in cls.__bases__:
            yield from _walk(f"{cls.__name__}.", dict(vars(cls)), known, 0)
    for plugin in {plugin_of(cls.__module__) for cls in type(method).__mro__ if plugin_of(cls.__module__).startswith(MODULE)}:
        for name, module in list(sys.modules.items()):
            if plugin_of(name) == plugin:
                own = {key: value for key, value in vars(module).items() if not isinstance(value, ModuleType) and not key.startswith("__")}
                yield from _walk(f"{name[len(plugin) :].lstrip('.') or 'its file'}.", own, known, 0)


def _walk(name: str, value: Any, known: dict[int, Any], depth: int) -> Iterator[tuple[str, Tensor]]:
    if id(value) in known or depth > DEEPEST or isinstance(value, Memory | ModuleType | str | bytes | int | float):
        return
    known[id(value)] = value
    if isinstance(value, Tensor):
        yield name, value
        return
    for key, part in _parts(value):
        yield from _walk(f"{name}{key}" if not name or name.endswith(".") else f"{name}.{key}", part, known, depth + 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The things inside a thing, each with its name."""
    if isinstance(value, dict):
        yield from ((str(key)[:40], part) for key, part in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(number), part) for number, part in enumerate(list(value)))
    elif isinstance(value, FunctionType):
        if plugin_of(value.__module__ or "").startswith(MODULE):
            yield from ((f"{value.__name__}[{number}]", part) for number, part in enumerate([*(value.__defaults__ or ()), value.__dict__]))
            yield from ((f"{value.__name__}.{name}", _inside(cell))
                        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
    elif isinstance(value, type):
        if plugin_of(value.__module__).startswith(MODULE):
            yield from list(vars(value).items())
    elif hasattr(value, "__dict__") and not type(value).__module__.startswith("torch."):
        yield from list(vars(value).items())


def _inside(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing has been put in yet
        return None


def place(tensor: Tensor) -> int:
    """The address of a tensor's storage; 0 for one without, such as a lazy one."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0

