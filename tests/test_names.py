"""One name, one thing: class names are unique, retired words stay away, and a docstring's first line says what the thing is or does."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "suite" / "cachemark"
FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if "versions" not in file.parts]
RETIRED = frozenset({
    "settle", "OwnWork", "own_work", "look", "edge", "phase", "portions", "Books", "books", "Slots", "anatomy", "Anatomy", "Shelf", "shelf",
    "shelves", "seen", "unmet", "beside", "held", "eyes", "stands", "again", "Couple", "Course", "couple", "course", "couples", "spoilt",
    "mistakes", "explained", "words", "why", "choice", "contestants", "Contestants", "Judged", "judged",
})
"""Words of which nobody knew what they meant here. They are no name of a module, class, function, parameter or attribute."""
VAGUE = re.compile(r"(What|Who|Whom|Whose|Whether|Why|How|Where|When|All that|The same)\b")


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names that others see: of classes, functions, parameters and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.lineno, node.name
            yield from ((n.lineno, n.target.id) for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name.strip("_")
            yield from ((a.lineno, a.arg) for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr.strip("_")


def retired(file: Path) -> list[str]:
    found = [f"{file}:{line}: {name}" for line, name in names(ast.parse(file.read_text())) if name in RETIRED]
    return [*found, *([f"{file}: the file's name"] if file.stem in RETIRED else [])]


def documented(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """First lines of the docstrings of the file, its classes and its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text.splitlines()[0]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_retired_word_is_a_name(file: Path) -> None:
    assert not retired(file), "\n" + "\n".join(retired(file))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_docstring_says_what_the_thing_is_or_does(file: Path) -> None:
    vague = [f"{file}:{line}: {first}" for line, first in documented(ast.parse(file.read_text())) if VAGUE.match(first)]
    assert not vague, "\n" + "\n".join(vague)


def test_a_class_name_means_one_class() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                where[node.name].append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
    twice = {name: places for name, places in where.items() if len(places) > 1}
    assert not twice, twice


def test_the_checks_find_something(tmp_path: Path) -> None:
    file = tmp_path / "shelf.py"
    file.write_text('"""What lies here."""\nclass Slots:\n    held: int\n    def phase(self, eyes):\n        self._unmet = 1\n')
    assert len(retired(file)) == 6
    assert [first for _, first in documented(ast.parse(file.read_text())) if VAGUE.match(first)] == ["What lies here."]
