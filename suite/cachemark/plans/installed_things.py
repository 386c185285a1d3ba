"""Import of installed packages' methods, models and metrics that plans or commands name.

Installed packages change nothing unless something names them. Built-in things, and those loaded with ``--plugin``, have precedence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..core import registry
from ..core.errors import BadPlugin, CachemarkError
from ..methods.registry import METHODS
from ..models.registry import MODELS
from ..plugins import installed
from ..plugins import loading as plugins

TABLES: dict[installed.Kind, registry.Registry[Any]] = {"methods": METHODS, "models": MODELS,
                                                         "metrics": registry.metrics}


def require(kind: installed.Kind, names: Iterable[str]) -> list[str]:
    """Import installed things with these names that nothing else has registered, and return their files.

    Unknown names are ignored; their lookup raises the error. Raises BadPlugin if a file does not register its thing."""
    return [bring(offer) for name in dict.fromkeys(names) if not _taken(kind, name) and (offer := installed.offer(kind, name))]


def _taken(kind: installed.Kind, name: str) -> bool:
    """Return whether something other than an installed package has registered the name."""
    if name not in TABLES[kind]:
        return False
    origin = plugins.origin(TABLES[kind].get(name))
    return origin is None or origin[0] not in {str(offer.file.resolve()) for offer in installed.offers(kind) if offer.name == name}


def bring(offer: installed.Offer) -> str:
    """Import an installed thing and return its file. Raises BadPlugin for a wrong or taken name."""
    file = offer.file
    try:
        plugins.load(file)
    except CachemarkError as error:
        raise BadPlugin(f"{offer.source}: {error.message}", remedy=error.remedy) from error
    if offer.name not in TABLES[offer.kind]:
        raise BadPlugin(f"{offer.source} says that {offer.module} registers the {offer.kind[:-1]} {offer.name!r}, and it does not.",
                        remedy="Register it under that name, or mend the entry point in the package's pyproject.toml.")
    return str(file)


def refused(offer: installed.Offer) -> str:
    """Import an installed thing. Return the reason if that fails, else an empty text."""
    table = TABLES[offer.kind]
    taken = table.entries().get(offer.name)
    if taken is not None and registry.module_of(taken).startswith("cachemark."):
        return f"cachemark itself has a {offer.kind[:-1]} of that name"
    try:
        installed.offer(offer.kind, offer.name)
        bring(offer)
    except CachemarkError as error:
        return error.message
    return ""


def axis_names(things: Iterable[Any]) -> Iterator[str]:
    """Yield the names in an axis of a plan, alone or in tables."""
    for thing in things:
        name = thing if isinstance(thing, str) else getattr(thing, "name", None)
        if isinstance(name, str):
            yield name
