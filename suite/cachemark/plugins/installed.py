"""Entry points of installed packages for methods, models, metrics and plans, read without importing.

An entry point ``knorm = "mine.knorm"`` in the group ``cachemark.methods`` declares that the file of the module ``mine.knorm`` registers a
method of that name. The file is loaded as any plug-in. For a plan the module is the package whose folder has ``NAME.toml``.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..core.errors import BadPlugin

Kind = Literal["methods", "models", "metrics", "plans"]
GROUPS: dict[Kind, str] = {"methods": "cachemark.methods", "models": "cachemark.models", "metrics": "cachemark.metrics",
                           "plans": "cachemark.plans"}  # fmt: skip


@dataclass(frozen=True)
class Offer:
    """An entry point of an installed package. ``module``: its dotted name."""

    kind: Kind
    name: str
    module: str
    package: str
    version: str

    @property
    def source(self) -> str:
        """The package and its version."""
        return f"{self.package} {self.version}"

    @property
    def file(self) -> Path:
        """The file of the module or plan, found without importing. Raises BadPlugin if it is missing."""
        path = _file(self.module)
        if path is not None and self.kind == "plans":
            path = path.parent / f"{self.name}.toml"
        if path is None or not path.is_file():
            raise BadPlugin(f"{self.source} names {self.module!r} for the {self.kind[:-1]} {self.name!r}, and there is no such file.",
                            remedy="Install the package again, or fix the entry points in its pyproject.toml.")
        return path


def offers(kind: Kind) -> list[Offer]:
    """Return all entry points of a kind, by name and package."""
    points = importlib.metadata.entry_points(group=GROUPS[kind])
    packaged = [(point, point.dist) for point in points if point.dist is not None]
    return sorted((Offer(kind, point.name, point.value.partition(":")[0].strip(), dist.name, dist.version) for point, dist in packaged),
                  key=lambda offer: (offer.name, offer.package))


def offer(kind: Kind, name: str) -> Offer | None:
    """Return the entry point of that name, or None; raise BadPlugin if two packages have it."""
    matches = [offer for offer in offers(kind) if offer.name == name]
    if len({offer.package for offer in matches}) > 1:
        raise BadPlugin(f"The {kind[:-1]} {name!r} is brought by {' and by '.join(offer.source for offer in matches)}.",
                        remedy="Uninstall one of them, or load the file that is meant with --plugin.")
    return matches[0] if matches else None


def _file(module: str) -> Path | None:
    """Return the file of a module without importing its packages."""
    top, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None or not (inner or spec.submodule_search_locations):
        return Path(spec.origin) if spec and spec.origin else None
    for folder in spec.submodule_search_locations or ():
        base = Path(folder, *inner)
        for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if path.is_file():
                return path
    return None
