"""Creation of a template package: a working method, model or metric, its test, and a pyproject."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from string import Template
from typing import Literal

from ..core.errors import BadPlugin
from ..core.files import writing
from ..core.units import FAMILIES, METRICS
from ..core.version import __version__
from ..methods.registry import METHODS
from ..models.registry import MODELS

Thing = Literal["method", "model", "metric"]
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


def template(name: str) -> Template:
    """The template of a file, from the package's ``data/templates``."""
    file = resources.files("cachemark") / "data" / "templates" / f"{name}.txt"
    return Template(file.read_text(encoding="utf-8"))


def start(thing: Thing, name: str, folder: str | Path = ".") -> list[Path]:
    """Write a package into the new folder ``cachemark-NAME`` of ``folder`` and return its files.

    Raises BadPlugin for an invalid name, for a name that cachemark has itself, without ``folder``, and if the new folder exists.
    """
    if not NAME.fullmatch(name):
        raise BadPlugin(f"{name[:60]!r} is not a valid name for a {thing}.",
                        remedy="Use at most 40 lowercase letters, digits and underscores, starting with a letter.")
    taken: dict[Thing, Iterable[str]] = {"method": METHODS, "model": MODELS, "metric": METRICS}
    if name in taken[thing] or (thing == "metric" and name.split("_")[0] in FAMILIES):
        raise BadPlugin(f"cachemark itself has a {thing} {name!r}.", remedy="Use another name.")
    root, package = Path(folder) / f"cachemark-{name.replace('_', '-')}", f"cachemark_{name}"
    if not Path(folder).is_dir():
        raise BadPlugin(f"The folder {str(folder)!r} does not exist.", remedy=f"Create it: mkdir -p {folder}")
    words = {"name": name, "thing": thing, "package": package, "distribution": root.name, "version": __version__,
             "title": "".join(part.capitalize() for part in name.split("_"))}
    texts = {
        "pyproject.toml": template("pyproject.toml").substitute(words),
        f"{package}/__init__.py": f'"""A {thing} for cachemark."""\n',
        f"{package}/{thing}.py": template(f"{thing}.py").substitute(words),
        f"tests/test_{name}.py": template("test.py").substitute(words),
    }
    if thing == "method":
        texts["plan.toml"] = template("plan.toml").substitute(words)
    if root.exists():
        raise BadPlugin(f"{root} exists already.", remedy="Use another name or --folder; nothing is overwritten.")
    with writing(root, "Use another --folder."), ExitStack() as undone:  # a full disk leaves nothing
        root.mkdir()
        undone.callback(shutil.rmtree, root, ignore_errors=True)
        for file, text in texts.items():
            (root / file).parent.mkdir(exist_ok=True)
            (root / file).write_text(text, encoding="utf-8")
        undone.pop_all()
    return [root / file for file in texts]
