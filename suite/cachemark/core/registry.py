"""Names of methods and models. Importing a file registers what it defines; nothing else has to be edited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from .errors import unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """A table of named things of one kind. A name may be given again only by the same source file (a reload)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str) -> Callable[[T], T]:
        """Decorator that files ``thing`` under ``name``."""

        def put(thing: T) -> T:
            held = self._entries.get(name)
            if held is not None and getattr(held, "__module__", None) != getattr(thing, "__module__", None):
                raise ValueError(f"{self.kind} {name!r} is already registered by {getattr(held, '__module__', held)}")
            self._entries[name] = thing
            return thing

        return put

    def get(self, name: str) -> T:
        """The thing of that name, or an error with the nearest name."""
        try:
            return self._entries[name]
        except KeyError:
            raise unknown(self.kind, name, self._entries) from None

    def drop(self, module: str) -> None:
        """Take out what that module has added; of a model, its ``load`` names the module."""
        self._entries = {name: thing for name, thing in self._entries.items()
                         if getattr(getattr(thing, "load", thing), "__module__", None) != module}

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Keep entries added inside only if the block ends without an error or an interruption."""
        before = dict(self._entries)
        try:
            yield
        except BaseException:
            self._entries = before
            raise

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))


methods: Registry[Any] = Registry("method")
models: Registry[Any] = Registry("model")
method = methods.add
