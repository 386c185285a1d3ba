"""Tensors that are reachable from a method, its class and the modules of its plug-in."""

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

DEEPEST = 12  # levels of nesting


def outside(method: Method, memory: Memory) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and shapes of the reachable tensors that do not come from ``memory``."""
    inside = set(memory.pointers().values())
    return sorted((name, tuple(tensor.shape)) for name, tensor in dict(reachable(method)).items()
                  if tensor.numel() and storage_address(tensor) not in inside)


def reachable(method: Method) -> Iterator[tuple[str, Tensor]]:
    """Yield every reachable tensor with its name, except tensors of the memory and of built-in classes."""
    visited: dict[int, Any] = {}  # holds the objects, so that no later one gets the same id
    yield from _walk("", vars(method), visited, 0)
    for cls in type(method).__mro__:
        if plugin_of(cls.__module__).startswith(MODULE) and Watched not in cls.__bases__:
            yield from _walk(f"{cls.__name__}.", dict(vars(cls)), visited, 0)
    for plugin in {plugin_of(cls.__module__) for cls in type(method).__mro__ if plugin_of(cls.__module__).startswith(MODULE)}:
        for name, module in list(sys.modules.items()):
            if plugin_of(name) == plugin:
                own = {key: value for key, value in vars(module).items() if not isinstance(value, ModuleType) and not key.startswith("__")}
                yield from _walk(f"{name[len(plugin) :].lstrip('.') or 'its file'}.", own, visited, 0)


def _walk(name: str, value: Any, visited: dict[int, Any], depth: int) -> Iterator[tuple[str, Tensor]]:
    if id(value) in visited or depth > DEEPEST or isinstance(value, Memory | ModuleType | str | bytes | int | float):
        return
    visited[id(value)] = value
    if isinstance(value, Tensor):
        yield name, value
        return
    for key, part in _parts(value):
        yield from _walk(f"{name}{key}" if not name or name.endswith(".") else f"{name}.{key}", part, visited, depth + 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((str(key)[:40], part) for key, part in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(number), part) for number, part in enumerate(list(value)))
    elif isinstance(value, FunctionType):
        if plugin_of(value.__module__ or "").startswith(MODULE):
            yield from ((f"{value.__name__}[{number}]", part) for number, part in enumerate([*(value.__defaults__ or ()), value.__dict__]))
            yield from ((f"{value.__name__}.{name}", _contents(cell))
                        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
    elif isinstance(value, type):
        if plugin_of(value.__module__).startswith(MODULE):
            yield from list(vars(value).items())
    elif hasattr(value, "__dict__") and not type(value).__module__.startswith("torch."):
        yield from list(vars(value).items())


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # still empty
        return None


def storage_address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage; 0 for a tensor without one, such as a lazy one."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0
