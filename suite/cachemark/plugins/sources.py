"""Files of a plug-in: the named one, and files next to it or in its package that it imports.

All are read before any of them runs, and exactly this content is executed and hashed. Only import statements count, not ``importlib``.
They are imported under names of the plug-in: two plug-ins may each have a ``helper.py``, and an edited one is imported again.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib.metadata
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.files import PACKAGE

DIGITS = 12  # of a digest
INSTALLED = ("site-packages", "dist-packages")  # folders where each distribution has names of its own
NEVER = {*sys.stdlib_module_names, *sys.builtin_module_names, "cachemark"}  # names that are never files of a plug-in


@dataclass(frozen=True)
class Source:
    """File with its content. ``package``: it is an ``__init__.py``."""

    path: Path
    content: bytes
    package: bool = False


@dataclass(frozen=True)
class Sources:
    """All files of a plug-in.

    ``modules``: by dotted import name. ``main``: name of the given file, empty for a file in no package.
    """

    main: str
    modules: Mapping[str, Source]

    @classmethod
    def read(cls, file: Path) -> Sources:
        """Read the files of a plug-in. Raises OSError."""
        names: Callable[[], set[str]]
        root = file.parent
        while (root / "__init__.py").is_file() and root != PACKAGE and root.parent != root:
            root = root.parent
        if root in (PACKAGE, file.parent):
            root, main, names = file.parent, "", cache(lambda: _neighbours(file))
        else:
            parts = file.relative_to(root).with_suffix("").parts
            main, names = ".".join(parts[:-1] if parts[-1] == "__init__" else parts), lambda: {parts[0]}
        sources = {"": Source(file, b"", package=True)} if main else {}
        waiting = _with_parents(main)
        while waiting:
            name = waiting.pop()
            if name in sources or (source := Source(file, file.read_bytes(), not main) if name == main else _module(root, name)) is None:
                continue
            sources[name] = source
            waiting += [each for imported in _imports(name, source, names) for each in _with_parents(imported)]
        return cls(main, sources)

    @property
    def file(self) -> Path:
        """The file that the user named."""
        return self.modules[self.main].path

    @cached_property
    def digest(self) -> str:
        """Digest of contents and names, independent of the location."""
        own = {name: source.content for name, source in self.modules.items() if name or not self.main}
        if len(own) == 1:
            return short(self.modules[self.main].content)
        return short(*(f"{name} {len(content)} ".encode() + content for name, content in sorted(own.items())))


def short(*parts: bytes) -> str:
    """Return the first digits of a SHA-256 hash."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()[:DIGITS]


def _neighbours(file: Path) -> set[str]:
    """Return the names of modules and packages next to a file; in site-packages, of its distribution."""
    names = {path.stem for path in file.parent.glob("*.py")} | {path.parent.name for path in file.parent.glob("*/__init__.py")}
    if file.parent.name in INSTALLED:
        of = importlib.metadata.packages_distributions()
        names = {name for name in names if set(of.get(name, ())) & set(of.get(file.stem, ()))}
    return names - NEVER - {file.stem}


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _module(root: Path, name: str) -> Source | None:
    """Return the file of a module name, or None."""
    base = root.joinpath(*name.split("."))
    for path, package in ((base / "__init__.py", True), (base.with_name(f"{base.name}.py"), False)):
        if path.is_file():
            return Source(path, path.read_bytes(), package)
    return None


def _imports(name: str, source: Source, names: Callable[[], set[str]]) -> set[str]:
    """Return the modules below ``names`` that a file may import, also inside functions."""
    if b"import" not in source.content or not (own := names()):
        return set()
    try:
        tree = ast.parse(source.content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # reported with its line when the file is imported
        return set()
    package = (name if source.package else name.rpartition(".")[0]).split(".")
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = [*(package[: len(package) - node.level + 1] if node.level else []), *filter(None, [node.module])]
            imported |= {".".join(filter(None, [*base, *last])) for last in ([], *([alias.name] for alias in node.names))}
    return {module for module in imported if module.partition(".")[0] in own}


sources_by_plugin: dict[str, Sources] = {}  # of imported plug-ins, by the name of the plug-in's first module


def know(plugin: str, sources: Sources) -> None:
    """Make modules of the plug-in importable from these sources."""
    sources_by_plugin[plugin] = sources
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds modules of known plug-ins."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        plugin, _, name = fullname.partition(".")
        source = sources_by_plugin[plugin].modules.get(name) if plugin in sources_by_plugin else None
        if source is None:
            return None
        spec = ModuleSpec(fullname, _Loader(plugin, source), origin=str(source.path), is_package=source.package)
        spec.has_location = True
        return spec


class _Loader(Loader):
    """Executes the source that was read; bytecode on disk may be outdated."""

    def __init__(self, plugin: str, source: Source) -> None:
        self._plugin, self._source = plugin, source

    def exec_module(self, module: ModuleType) -> None:
        own = {name.partition(".")[0] for name in sources_by_plugin[self._plugin].modules} - {""}
        if own:
            vars(module)["__builtins__"] = vars(builtins) | {"__import__": _importing(self._plugin, own)}
        exec(compile(self._source.content, str(self._source.path), "exec", dont_inherit=True), vars(module))


def _importing(plugin: str, own: set[str]) -> Callable[..., Any]:
    """Return an ``__import__`` that looks for a plug-in's own names among its files only."""

    def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        top = name.partition(".")[0]
        if level or top not in own:
            return builtins.__import__(name, globals, locals, fromlist, level)
        module = builtins.__import__(f"{plugin}.{name}", globals, locals, fromlist, 0)
        return module if fromlist else sys.modules[f"{plugin}.{top}"]

    return imported
