"""Tables of named things. Looking up a built-in name imports only the module that registers it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from .errors import BadPlugin, unknown

if TYPE_CHECKING:
    from ..metrics.base import MetricBase

T = TypeVar("T")
Thing = TypeVar("Thing")  # a decorator returns the class that it is given with its own type
LONGEST = 100  # letters of a name, which appears in tables, labels and file names
PLAIN = re.compile(rf"[^<>&\"'`|]{{1,{LONGEST}}}")  # no markup of HTML or Markdown


class Registry(Generic[T]):
    """Names of one ``kind`` of thing.

    ``base``: the class of each instance, or where ``classes``, the base class of each. ``built_in`` maps the names of the package to the
    modules that register them; they are imported when their name is looked up."""

    def __init__(self, kind: str, base: type | None = None, *, classes: bool = False, built_in: Mapping[str, str] | None = None) -> None:
        self.kind, self.base, self._classes = kind, base, classes
        self._built_in = dict(built_in or {})
        self._entries: dict[str, T] = {}
        self._lookups: set[str] | None = None

    def add(self, name: str) -> Callable[[Thing], Thing]:
        """Return a decorator that registers a thing.

        A class without a ``name`` of its own gets it; one derived from a dataclass becomes one. Raises BadPlugin for a name with
        markup or that cannot be printed, a name that is taken by another module, or a thing of another kind."""
        if not isinstance(name, str) or not PLAIN.fullmatch(name) or not name.isprintable() or name != name.strip():
            raise BadPlugin(f"{_described(name)} is not a valid name of a {self.kind}.",
                            remedy=f"Use 1 to {LONGEST} printable letters without markup or blanks at their ends.")

        def register(thing: Thing) -> Thing:
            self._check_free(name, thing)
            self._check_kind(name, thing)
            if self._classes and isinstance(thing, type):
                if is_dataclass(thing) and "__dataclass_fields__" not in vars(thing):
                    dataclass(thing)
                if "name" not in vars(thing):
                    cast("Any", thing).name = name
            self._entries[name] = cast("T", thing)
            return thing

        return register

    def get(self, name: str) -> T:
        """Return the thing of that name. Raises UnknownName with the nearest name."""
        if name not in self._entries and name in self._built_in:
            importlib.import_module(self._built_in[name])
        try:
            thing = self._entries[name]
        except KeyError:
            raise unknown(self.kind, name, list(self)) from None
        if self._lookups is not None:
            self._lookups.add(module_of(thing))
        return thing

    def entries(self) -> dict[str, T]:
        """Return a copy of the imported part of the table."""
        return dict(self._entries)

    def restore(self, entries: Mapping[str, T]) -> None:
        """Replace the table by a copy that :meth:`entries` returned."""
        self._entries = dict(entries)

    def registered_by(self, module: str) -> list[str]:
        """Return sorted names that a module registered; for a model the module of its ``load`` counts."""
        return sorted(name for name, thing in self._entries.items() if _is_within(thing, module))

    def drop(self, module: str) -> None:
        """Remove all registrations of a module and its submodules."""
        self._entries = {name: thing for name, thing in self._entries.items() if not _is_within(thing, module)}

    @contextmanager
    def importing(self, older: Iterable[str], lookups: set[str]) -> Iterator[None]:
        """Replace registrations of a plug-in's ``older`` modules inside this context; an error undoes it.

        The modules of all things that are looked up in the block are added to ``lookups``."""
        before, self._lookups = self.entries(), lookups
        for module in older:
            self.drop(module)
        try:
            yield
        except BaseException:
            self.restore(before | {name: thing for name, thing in self._entries.items() if name in self._built_in})
            raise
        finally:
            self._lookups = None

    def _check_free(self, name: str, thing: object) -> None:
        current, module = self._entries.get(name), module_of(thing)
        owner = self._built_in.get(name, "") if current is None else module_of(current)
        if current is None and module.startswith("cachemark."):
            return
        if (owner or current is not None) and owner not in (module, "__main__"):  # a file replaces what was tried in a console
            raise BadPlugin(f"The {self.kind} {name!r} is already registered by {owner or _described(current)}.",
                            remedy="Register yours under another name.")

    def _check_kind(self, name: str, thing: object) -> None:
        if self.base is None:
            return
        if isinstance(thing, type) and issubclass(thing, self.base) if self._classes else isinstance(thing, self.base):
            return
        expected = f"class derived from {self.base.__name__}" if self._classes else self.base.__name__
        raise BadPlugin(f"What is registered as {self.kind} {name!r} is {_described(thing)}.", remedy=f"Register a {expected}.")

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._built_in

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._entries, *self._built_in}))


def module_of(thing: Any) -> str:
    """The module that defines a registered thing; for a model it is the module of its ``load``."""
    return str(getattr(getattr(thing, "load", thing), "__module__", None) or "")


def _is_within(thing: Any, module: str) -> bool:
    return f"{module_of(thing)}.".startswith(f"{module}.")


def _described(thing: object) -> str:
    """A thing in a few letters, without its own ``repr``, which may be of any length or fail."""
    if isinstance(thing, str):
        return repr(thing[:40]) + (f" and {len(thing) - 40} more letters" if len(thing) > 40 else "")
    return f"the class {thing.__name__[:40]}" if isinstance(thing, type) else f"of type {type(thing).__name__[:40]}"


metrics: Registry[type[MetricBase]] = Registry("metric", classes=True)  # of plug-ins: ours are in :mod:`cachemark.core.units`
