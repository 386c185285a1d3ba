"""Python files as the tests of the package's shape read them: their names, their imports and their statements, without importing any."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """One imported module, by full name. ``deferred``: inside a function."""

    line: int
    target: str
    deferred: bool = False


class Source:
    """One parsed file of the package at ``root``; ``name`` is its full module name."""

    def __init__(self, file: Path, root: Path) -> None:
        parts = file.relative_to(root.parent).with_suffix("").parts
        self.file, self.text = file, file.read_text(encoding="utf-8")
        self.is_init = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_init else parts)
        self.tree = ast.parse(self.text, str(file))

    @property
    def part(self) -> str:
        """The part of the package that the file belongs to: ``store`` for ``cachemark.store.db``, empty for the root and what it runs."""
        return part_of(self.name).removesuffix("__main__")

    def at(self, line: int) -> str:
        return f"{self.file}:{line}"

    @cached_property
    def imports(self) -> list[Import]:
        return list(self._visit(self.tree.body))

    def _visit(self, nodes: list[ast.stmt] | list[ast.AST], deferred: bool = False) -> Iterator[Import]:
        for node in nodes:
            if isinstance(node, ast.If) and for_types(node):
                yield from self._visit(node.orelse, deferred)
                continue
            yield from (Import(node.lineno, t, deferred) for t in self._targets(node))
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            by_name = "import_module" in self.text  # a call, which may stand anywhere in an expression
            yield from self._visit([*ast.iter_child_nodes(node)] if by_name else blocks(node), deferred or inside)

    def _targets(self, node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            base = self._absolute(node.level, node.module)
            return [f"{base}.{alias.name}" for alias in node.names]
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module" and node.args:
            first = node.args[0]
            return [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []
        return []

    def _absolute(self, level: int, module: str | None) -> str:
        """``from ..a import b`` of ``p.q.r`` is about ``p.a``; an ``__init__`` counts as one level deeper than its name."""
        up = self.name.split(".") + (["__init__"] if self.is_init else [])
        return ".".join([*up[: len(up) - level], *([module] if module else [])]) if level else module or ""


def for_types(node: ast.If) -> bool:
    return getattr(node.test, "attr", getattr(node.test, "id", "")) == "TYPE_CHECKING"


def blocks(node: ast.AST) -> list[ast.AST]:
    """The statements directly inside a node, which alone can hold imports, classes and functions."""
    parts = [part for name in ("body", "handlers", "cases", "orelse", "finalbody") for part in getattr(node, name, ())]
    return parts if isinstance(node, ast.stmt | ast.Module | ast.excepthandler | ast.match_case) else []


def statements(node: ast.AST) -> Iterator[ast.AST]:
    for inner in blocks(node):
        yield inner
        yield from statements(inner)


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def sources(root: Path) -> list[Source]:
    return [Source(file, root) for file in sorted(root.rglob("*.py"))]
