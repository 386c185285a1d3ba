"""Import of what installed packages bring, where a plan or a command asks for it by name.

That a package is installed changes nothing of what a plan measures: its things are there to be named. What is built in, or was loaded with
``--plugin``, comes before what a package calls the same.
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
    """Import those installed things of that kind which have one of these names and which nothing else has registered. Returns the paths
    of their files. Names that no package brings are passed over: who looks them up says so. BadPlugin where a file does not bring its
    thing."""
    return [bring(offer) for name in dict.fromkeys(names) if not _taken(kind, name) and (offer := installed.offer(kind, name))]


def _taken(kind: installed.Kind, name: str) -> bool:
    """True of a name that something else than an installed package has registered in this process."""
    if name not in TABLES[kind]:
        return False
    origin = plugins.origin(TABLES[kind].get(name))
    return origin is None or origin[0] not in {str(offer.file.resolve()) for offer in installed.offers(kind) if offer.name == name}


def bring(offer: installed.Offer) -> str:
    """Import the file of an installed thing and return its path. BadPlugin where it registers another name, or one that is taken."""
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
    """The reason why an installed thing cannot be had, or nothing. It is imported where it can."""
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


def asked(things: Iterable[Any]) -> Iterator[str]:
    """Names that stand in an axis of a plan, alone or in tables."""
    for thing in things:
        name = thing if isinstance(thing, str) else getattr(thing, "name", None)
        if isinstance(name, str):
            yield name
