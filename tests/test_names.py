"""One name, one thing: class names are unique, retired words stay away, and a docstring's first line says what the thing is or does."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from test_floors import PACKAGE, parsed

FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if "versions" not in file.parts]
RETIRED = frozenset({
    "settle", "OwnWork", "own_work", "look", "edge", "phase", "portions", "Books", "books", "Slots", "anatomy", "Anatomy", "Shelf", "shelf",
    "shelves", "seen", "unmet", "beside", "held", "eyes", "stands", "again", "Couple", "Course", "couple", "course", "couples", "spoilt",
    "mistakes", "explained", "words", "why", "choice", "contestants", "Contestants", "Judged", "judged"})
"""Words of which nobody knew what they meant here. They are no names of a module, class, function, parameter or attribute."""
VAGUE = re.compile(r"(What|Who|Whom|Whose|Whether|Why|How|Where|When|All that|The same)\b")


def names(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Names that a node gives to what others see: classes, functions, parameters and attributes."""
    if isinstance(node, ast.ClassDef):
        yield node.lineno, node.name
        yield from ((n.lineno, n.target.id) for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.lineno, node.name.strip("_")
        yield from ((a.lineno, a.arg) for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.lineno, node.attr.strip("_")


def test_no_retired_word_is_a_name_a_docstring_says_what_the_thing_is_or_does_and_a_class_name_means_one_class() -> None:
    found = [f"{file}: the file's name" for file in FILES if file.stem in RETIRED]
    where = defaultdict[str, list[str]](list)
    for file, node in ((path, node) for path in FILES for node in ast.walk(parsed(path))):
        found += [f"{file}:{line}: {name}" for line, name in names(node) if name in RETIRED]
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            found += [f"{file}:{getattr(node, 'lineno', 1)}: {first}"] * bool(VAGUE.match(first))
        if isinstance(node, ast.ClassDef):
            where[node.name].append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
    assert not found, "\n" + "\n".join(found)
    twice = {name: places for name, places in where.items() if len(places) > 1}
    assert not twice, twice
