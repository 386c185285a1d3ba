"""Everything that authors of plug-ins import is typed: ``mypy --strict`` finds mistakes and nothing else."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cachemark
from cachemark.workflows.new import THINGS, start, template

PACKAGE = Path(cachemark.__file__).parent
METHOD = '''"""A method that looks at attention, and a model's entry."""

from dataclasses import dataclass
from typing import assert_type

from torch import Tensor

import cachemark as cm
from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Site, Step
from cachemark.contract.decoder import Decoder
from cachemark.contract.method import Method
from cachemark.decoders.registry import DECODERS
from cachemark.methods.registry import METHODS
from cachemark.models.registry import MODELS
from cachemark.core import registry
from cachemark.methods.base.evicting import Evicting
from cachemark.metrics.base import MetricBase
from cachemark.models.protocol import Loaded, ModelEntry, Request


@cm.method("watching")
@dataclass
class Watching(Evicting):
    name = "watching"
    power: float = 1.0

    def evict(self, step: Step, slots: SlotBank) -> None:
        assert_type(slots.keys(), Tensor)
        assert_type(slots.live_visual, int)


class Plain(Method):
    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(site, step, q, k, v)


assert_type(cm.method("plain")(Plain), type[Plain])
assert_type(cm.method("plain")(Plain), type[Plain])


def filed(entry: ModelEntry, request: Request) -> Loaded:
    assert_type(MODELS.add("filed")(entry), ModelEntry)
    return MODELS.get("filed").load(request)


def read(name: str) -> Method:
    assert_type(MODELS.get(name), ModelEntry)
    assert_type(DECODERS.get(name), type[Decoder])
    assert_type(registry.metrics.get(name), type[MetricBase])
    assert_type(METHODS.entries(), dict[str, type[Method]])
    return METHODS.get(name).build({})
'''
WRONG = '''"""Six mistakes, each in a line that says so."""

from cachemark.cache.bank import SlotBank
from cachemark.cache.layout import Step
import cachemark as cm
from cachemark.decoders.registry import DECODERS
from cachemark.methods.registry import METHODS
from cachemark.models.registry import MODELS
from cachemark.core import registry
from cachemark.methods.base.evicting import Evicting, SlotBank as Again  # attr-defined
from cachemark.models.protocol import Loaded, Request


@cm.method("wrong")
class Wrong(Evicting):
    def evict(self, step: int, slots: SlotBank) -> None:  # override
        return None

    def count(self, slots: SlotBank) -> str:
        return slots.live_visual  # return-value


def load(request: Request) -> Loaded:
    return request  # return-value


def evicts(name: str) -> str:
    print(METHODS.get(name).evict_before)  # attr-defined
    return METHODS.get(name).evicts  # return-value
'''
PLUGINS = {thing: template(f"{thing}.py").substitute(name="mine", title="Mine") for thing in THINGS} | {"written": METHOD}


def taken(source: str) -> list[tuple[str, str]]:
    """Return the modules of cachemark that a source imports from, with the imported names."""
    return [(node.module or "", name.name) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)
            if (node.module or "").startswith("cachemark") for name in node.names]


def own(module: str) -> set[str]:
    """Return the names that a module defines itself, without imported ones."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    names: set[str] = set()
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
    return names | {path.stem for path in Path(spec.origin).parent.iterdir() if Path(spec.origin).name == "__init__.py"}


def borrowed(source: str) -> list[tuple[str, str]]:
    return [(module, name) for module, name in taken(source) if name not in own(module)]


def untyped(module: str) -> list[str]:
    """Return public functions of a module with an untyped parameter or result."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    bare = []
    for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if node.returns is None or any(argument.annotation is None for argument in arguments if argument.arg not in ("self", "cls")):
                bare.append(f"{module}:{node.lineno} {node.name}")
    return bare


@pytest.mark.parametrize("plugin", PLUGINS)
def test_what_authors_import_is_defined_where_they_import_it_from(plugin: str) -> None:
    assert len(taken(PLUGINS[plugin])) >= 2
    assert borrowed(PLUGINS[plugin]) == []


def test_what_is_only_imported_there_is_found() -> None:
    assert borrowed(WRONG) == [("cachemark.methods.base.evicting", "SlotBank")]


def test_what_authors_import_from_has_types() -> None:
    assert (PACKAGE / "py.typed").is_file(), "without it a checker takes all of the package for Any"
    test = template("test.py").substitute(thing="method", package="cachemark_mine")
    modules = {module for source in [*PLUGINS.values(), test] for module, _ in taken(source)}
    assert [name for module in sorted(modules) for name in untyped(module)] == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="no mypy here; the extra `dev` has it")
def test_mypy_strict_finds_the_mistakes_and_nothing_else(tmp_path: Path) -> None:
    """As an author runs it: cachemark is installed, its own files are not checked, and ``py.typed`` declares its types."""
    for thing in THINGS:
        start(thing, f"my_{thing}", tmp_path)
    (tmp_path / "written.py").write_text(METHOD, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    begun = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("cachemark-*/**/*.py"))
    assert len(begun) == 9
    command = [sys.executable, "-P", "-m", "mypy", "--strict", "--config-file", os.devnull, "written.py", "wrong.py", *begun]
    checked = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)}, capture_output=True, text=True, check=False)
    errors = set(re.findall(r"^(.+?):(\d+): error: .*\[([a-z-]+)\]$", checked.stdout, flags=re.MULTILINE))
    marked = {("wrong.py", str(number), line.rpartition("# ")[2])
              for number, line in enumerate(WRONG.splitlines(), 1) if re.search(r"  # [a-z-]+$", line)}
    assert len(marked) == 6
    assert errors == marked, checked.stdout + checked.stderr
