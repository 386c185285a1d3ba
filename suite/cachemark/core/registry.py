"""Names of methods, models, decoders and metrics. Importing a file registers what it defines; nothing else has to be edited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from .errors import BadPlugin, unknown

if TYPE_CHECKING:  # they stand on this room, and import torch
    from ..contract.decoder import Decoder
    from ..contract.method import Method
    from ..metrics.image_metric import ImageMetric
    from ..models.protocol import ModelEntry

T = TypeVar("T")
Given = TypeVar("Given")  # what a decorator is given it gives back: a class keeps its own type, whatever the table holds
LONGEST = 100  # letters of a name: it stands in tables, labels and file names


class Registry(Generic[T]):
    """A table of named things of one kind. A name may be given again only by the same source file (a reload).

    ``base`` is what each must be: a subclass of it where ``classes``, else an instance. The room that defines it sets it.
    """

    def __init__(self, kind: str, *, classes: bool = False) -> None:
        self.kind = kind
        self.base: type | None = None
        self._classes = classes
        self._entries: dict[str, T] = {}
        self._asked: set[str] | None = None

    def add(self, name: str) -> Callable[[Given], Given]:
        """Decorator that files ``thing`` under ``name``. Raises BadPlugin for a name that cannot be shown or a thing of another kind."""
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST or not name.isprintable() or name != name.strip():
            raise BadPlugin(f"{_shown(name)} is no name of a {self.kind}.",
                            remedy=f"Give 1 to {LONGEST} printable letters without blanks at their ends.")

        def put(thing: Given) -> Given:
            held = self._entries.get(name)
            if held is not None and module_of(held) != module_of(thing):
                raise BadPlugin(f"The {self.kind} {name!r} is already registered by {module_of(held) or _shown(held)}.",
                                remedy="Register yours under another name.")
            self._refuse_other(name, thing)
            if isinstance(thing, type):
                complete_class(thing, name)
            self._entries[name] = cast("T", thing)
            return thing

        return put

    def get(self, name: str) -> T:
        """The thing of that name, or an error with the nearest name."""
        try:
            found = self._entries[name]
        except KeyError:
            raise unknown(self.kind, name, self._entries) from None
        if self._asked is not None:
            self._asked.add(module_of(found))
        return found

    def entries(self) -> dict[str, T]:
        """A copy of the table."""
        return dict(self._entries)

    def restore(self, entries: dict[str, T]) -> None:
        """Make the table what :meth:`entries` was."""
        self._entries = dict(entries)

    def of(self, module: str) -> list[str]:
        """Names that a module or those inside it have added, sorted; of a model, its ``load`` names the module."""
        return [name for name in self if _within(self._entries[name], module)]

    def drop(self, module: str) -> None:
        """Take out what that module or those inside it have added."""
        self._entries = {name: thing for name, thing in self._entries.items() if not _within(thing, module)}

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Keep entries added inside only if the block ends without an error or an interruption."""
        before = self.entries()
        try:
            yield
        except BaseException:
            self.restore(before)
            raise

    @contextmanager
    def asking(self, modules: set[str]) -> Iterator[None]:
        """Note the modules of all things that are asked for inside."""
        self._asked = modules
        try:
            yield
        finally:
            self._asked = None

    def _refuse_other(self, name: str, thing: object) -> None:
        if self.base is None:
            return
        right = isinstance(thing, type) and issubclass(thing, self.base) if self._classes else isinstance(thing, self.base)
        if not right:
            what = f"class derived from {self.base.__name__}" if self._classes else self.base.__name__
            raise BadPlugin(f"What is registered as {self.kind} {name!r} is {_shown(thing)}.", remedy=f"Register a {what}.")

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))


def complete_class(cls: type, name: str) -> None:
    """Set ``name`` on a registered class that has none of its own, and make it a dataclass where its base is one."""
    if "name" not in vars(cls):
        cls.name = name  # type: ignore[attr-defined]
    if is_dataclass(cls) and "__dataclass_fields__" not in vars(cls):
        dataclass(cls)


def module_of(thing: Any) -> str:
    """The module that defines a thing of a registry; that of a model is where its ``load`` stands."""
    return str(getattr(getattr(thing, "load", thing), "__module__", None) or "")


def _within(thing: Any, module: str) -> bool:
    return f"{module_of(thing)}.".startswith(f"{module}.")


def _shown(thing: object) -> str:
    """A thing in a few letters; its own words are not asked for, since they may be of any length or fail."""
    if isinstance(thing, str):
        return repr(thing[:40]) + (f" and {len(thing) - 40} more letters" if len(thing) > 40 else "")
    return f"the class {thing.__name__[:40]}" if isinstance(thing, type) else f"of type {type(thing).__name__[:40]}"


methods: Registry[type[Method]] = Registry("method", classes=True)
models: Registry[ModelEntry] = Registry("model")
decoders: Registry[type[Decoder]] = Registry("decoder", classes=True)
metrics: Registry[type[ImageMetric]] = Registry("metric", classes=True)  # of plug-ins: ours stand in :mod:`cachemark.core.units`
method = methods.add
"""Decorator that gives the class of a method its name: ``@cm.method("mine")``."""
