"""The shape of the package: who may import whom, and how long things may be.

The rules stand in CONTRIBUTING.md, "Floors". The checker reads source and imports nothing, so it covers code that no other
test reaches; the last tests turn it on a synthetic package in which every rule is broken once.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from support.sources import Import, Source, for_types, part_of, sources, statements

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "suite" / "cachemark"

ROOMS = (  # from the ground up: a room may import those before it
    "core", "stats", "cache", "contract", "roofline", "methods", "decoders", "models", "metrics", "plugins", "machine", "kit",
    "plans", "trial", "store", "gate", "analysis", "report", "export", "workflows", "cli",
)
FLOORS = {room: floor for floor, room in enumerate(ROOMS)}
WITHOUT_TORCH = ("core", "stats", "store", "gate", "analysis", "report", "export")  # they work on machines that cannot measure
STRANGERS = (  # the upper of each pair does not import the lower either
    ("methods", "models"), ("methods", "decoders"), ("decoders", "models"),
)
MAX_FILE, MAX_MODEL, MAX_FUNCTION = 400, 350, 60
VAGUE = ("Manager", "Handler", "Util", "Utils", "Helper")


def floor_faults(files: list[Source], package: str) -> Iterator[str]:
    """Imports that go up, across, or to torch where there must be none."""
    late = on_demand(files)
    for source in files:
        if source.part and source.part not in FLOORS:
            yield f"{source.at(1)}: {source.part!r} has no floor; give it one in {Path(__file__).name} and in CONTRIBUTING.md"
        elif source.part:
            for found in (replace(i, deferred=i.deferred or source.name in late) for i in source.imports):
                fault = _inner_fault(source, found, package) or _outer_fault(source, found, package)
                if fault:
                    yield f"{source.at(found.line)}: {source.name} imports {found.target}: {fault}"


def on_demand(files: list[Source]) -> set[str]:
    """Files of ``cli`` that are no command and that only the bodies of commands import: what they import comes late enough."""
    known = {s.name: s for s in files if s.part == "cli"}
    early = {_module(i.target, known) for s in known.values() for i in s.imports if not i.deferred}
    decorators = {s.name: [ast.unparse(d) for n in s.tree.body for d in getattr(n, "decorator_list", [])] for s in known.values()}
    plain = {name for name, found in decorators.items() if not any(d.startswith(("click.command", "click.group")) for d in found)}
    return plain - early - {name for name, source in known.items() if source.is_init}


def _inner_fault(source: Source, found: Import, package: str) -> str:
    if found.target.split(".")[0] != package:
        return ""
    part, own = part_of(found.target), source.part
    if part == own:
        return ""
    if part not in FLOORS:
        return "the root of the package only hands names on; import from where the name is made"
    if own == "cli" and not (found.deferred or part == "core"):
        return "a command imports what it needs inside its body"
    if own == "cli" and part not in ("core", "workflows"):
        return f"a command calls a workflow, which may use {part}"
    if FLOORS[part] > FLOORS[own]:
        return f"{own} stands below {part}"
    if (part, own) in STRANGERS:
        return f"{own} and {part} do not know each other"
    if own in WITHOUT_TORCH and part not in WITHOUT_TORCH:
        return f"{own} works without torch, {part} does not"
    return ""


def _outer_fault(source: Source, found: Import, package: str) -> str:
    top, own = found.target.split(".")[0], source.part
    if top == package or top in sys.stdlib_module_names:
        return ""
    if own == "core":
        return "core needs the standard library alone"
    if own in WITHOUT_TORCH and top in ("torch", "torchvision", "torch_fidelity"):
        return f"{own} works without torch"
    if own == "cli" and not found.deferred and top != "click":
        return "a command imports what it needs inside its body"
    return ""


def cycles(files: list[Source]) -> Iterator[str]:
    """Rings of files that import each other. Deferred imports count, and so does the ``__init__`` of another folder on the way."""
    known = {s.name: s for s in files}
    edges = {s.name: {t for i in s.imports for t in _executed(i.target, s.name, known) if t != s.name} for s in files}
    while True:
        leaves = {name for name, to in edges.items() if not to & edges.keys()}
        if not leaves:
            break
        edges = {name: to for name, to in edges.items() if name not in leaves}
    if edges:
        ring = _ring(edges)
        yield f"{known[ring[0]].at(1)}: import cycle: {' -> '.join(ring)}"


def _module(target: str, known: dict[str, Source]) -> str:
    """The file that ``target`` is or comes from: ``a.b.Name`` comes from ``a.b``."""
    return target if target in known else target.rpartition(".")[0] if target.rpartition(".")[0] in known else ""


def _executed(target: str, importer: str, known: dict[str, Source]) -> Iterator[str]:
    """The files that an import of ``target`` runs: its own, and the ``__init__`` of each folder in which the importer is not."""
    module = _module(target, known)
    if module:
        yield module
    parents = [module.rsplit(".", up)[0] for up in range(1, module.count(".") + 1)]
    yield from (parent for parent in parents if parent in known and not importer.startswith(f"{parent}."))


def _ring(edges: dict[str, set[str]]) -> list[str]:
    path = [min(edges)]
    while path[-1] not in path[:-1]:
        path.append(min(edges[path[-1]] & edges.keys()))
    return path[path.index(path[-1]) :]


def size_faults(files: list[Source]) -> Iterator[str]:
    """Files and functions that are too long, and class names that say nothing."""
    for source in files:
        lines, most = len(source.text.splitlines()), MAX_MODEL if source.part == "models" else MAX_FILE
        if lines > most:
            yield f"{source.at(lines)}: {lines} lines; a file here has at most {most}"
        for node in statements(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and length(node) > MAX_FUNCTION:
                yield f"{source.at(node.lineno)}: {node.name} has {length(node)} lines; a function has at most {MAX_FUNCTION}"
            if isinstance(node, ast.ClassDef) and node.name.endswith(VAGUE):
                yield f"{source.at(node.lineno)}: class {node.name} says nothing; name it after what it is"


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def init_faults(files: list[Source]) -> Iterator[str]:
    """Statements of ``__init__`` files that do more than hand names on."""
    for source in files:
        for node in source.tree.body if source.is_init else []:
            if not _hands_on(node):
                yield f"{source.at(node.lineno)}: an __init__ file only hands names on, this computes: {ast.unparse(node).splitlines()[0]}"


def _hands_on(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name in ("__getattr__", "__dir__")
    if isinstance(node, ast.If):
        return for_types(node) and all(map(_hands_on, node.body)) and not node.orelse
    if isinstance(node, ast.For):  # importing every file of a folder, so that each registers what it defines
        return all("import_module" in ast.unparse(inner) for inner in node.body)
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.Expr):
        return isinstance(node.value, ast.Constant | ast.List | ast.Tuple | ast.Dict)
    return isinstance(node, ast.Import | ast.ImportFrom)


def naming_faults(files: list[Source]) -> Iterator[str]:
    """A method lives in the file of its name, alone: what ``methods/`` registers, against the name of the file."""
    for source in (s for s in files if s.part == "methods"):
        stem, decorators = source.file.stem, [d for n in source.tree.body if isinstance(n, ast.ClassDef) for d in n.decorator_list]
        for call in (d for d in decorators if isinstance(d, ast.Call) and ast.unparse(d.func) in ("method", "METHODS.add", "cm.method")):
            if ast.literal_eval(call.args[0]).replace("-", "_") != stem:
                yield f"{source.at(call.lineno)}: {ast.unparse(call.args[0])} belongs into a file of that name"


def check(root: Path) -> list[str]:
    """Every fault of the package at ``root``, each with its file and line."""
    return faults_of(sources(root), root.name)


def faults_of(files: list[Source], package: str) -> list[str]:
    return [*floor_faults(files, package), *cycles(files), *size_faults(files), *init_faults(files), *naming_faults(files)]


# ------------------------------------------------------------------------------------------------ the package itself

@cache
def package() -> list[Source]:
    return sources(PACKAGE)


def test_the_package_keeps_its_shape() -> None:
    faults = faults_of(package(), PACKAGE.name)
    assert not faults, "\n" + "\n".join(faults)


def test_tests_and_benchmarks_keep_their_size() -> None:
    faults = [f for folder in ("tests", "benchmarks") for f in size_faults(sources(ROOT / folder))]
    assert not faults, "\n" + "\n".join(faults)


def judging_modules() -> list[str]:
    """The modules that must work without torch."""
    inside = [s for s in package() if s.part in (*WITHOUT_TORCH, "cli")]
    return [s.name for s in inside if not s.name.endswith("__main__")]


PROBE = """
import importlib, json, sys
found = {}
for name in [*json.load(sys.stdin), "cachemark.cache.slot", "cachemark.methods"]:
    before = "torch" in sys.modules
    importlib.import_module(name)
    found[name] = "torch" in sys.modules and not before
from cachemark.methods.registry import METHODS
methods, before = [*METHODS], set(sys.modules)
METHODS.get("window")
looked_up = [name for name in ("window", "h2o") if f"cachemark.methods.{name}" in sys.modules.keys() - before]
print(json.dumps([[name for name, brought in found.items() if brought], methods, looked_up]))
"""


@pytest.fixture(scope="module")
def imported() -> tuple[list[str], list[str], list[str]]:
    """A process that imports what must work without torch, then what needs it, and looks up one method.

    The modules that brought torch in, the methods, and those of two methods whose files the lookup has imported."""
    ran = subprocess.run([sys.executable, "-c", PROBE], input=json.dumps(judging_modules()), capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr
    torch, methods, looked_up = json.loads(ran.stdout)
    return torch, methods, looked_up


def test_a_lookup_imports_one_file(imported: tuple[list[str], list[str], list[str]]) -> None:
    assert imported[2] == ["window"]


def test_importing_what_judges_leaves_torch_out(imported: tuple[list[str], list[str], list[str]]) -> None:
    assert imported[0] == ["cachemark.cache.slot"], "the first that needs it, which shows that the probe can tell"


def test_importing_methods_registers_every_file(imported: tuple[list[str], list[str], list[str]]) -> None:
    """What a new method has to edit elsewhere is nothing: a file in the folder is enough."""
    files = {f.stem for f in (PACKAGE / "methods").glob("*.py")} - {"__init__", "registry"}
    assert {name.replace("-", "_") for name in imported[1]} == files


# ------------------------------------------------------------------------------------------------ the checker itself

CLEAN = {
    "__init__.py": '"""Doc."""\n__version__ = "1"\n_LAZY = {"frame": "store"}\ndef __getattr__(name):\n    from . import cli, store\n',
    "core/errors.py": "import json\n",
    "core/spec.py": "from .errors import X\n",
    "core/registry.py": "from . import errors\n",
    "methods/registry.py": "from ..core.registry import Registry\nMETHODS = Registry()\n",
    "cache/__init__.py": "from .slot import Slot\n__all__ = ['Slot']\n",
    "cache/slot.py": "import torch\nfrom ..core.version import __version__\n",
    "core/version.py": "__version__ = '1'\n",
    "models/a.py": "import torch\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..methods import b\n",
    "methods/b.py": "from .registry import METHODS\nfrom ..cache import Slot\n@METHODS.add('b')\nclass B: ...\n",
    "trial/run.py": "def f():\n    from ..models import a\n",
    "store/db.py": "import sqlalchemy\nfrom ..core.result import Outcome\n",
    "core/result.py": "from .spec import Case\n",
"report/page/b.py": "from ...store.db import Store\n",
    "cli/main.py": "import click\nfrom ..core.errors import X\n@click.command()\ndef f():\n    import torch\n    from . import bar\n",
    "cli/bar.py": "import rich\n",
}  # fmt: skip

UP = "from ..methods.b import B\n"
BROKEN = {  # what is broken: (file, its text, the line, the words)
    "up": ("core/spec.py", "\nfrom ..cache.slot import Slot\n", 2, "core stands below cache"),
    "third party below": ("core/errors.py", "import numpy\n", 1, "core needs the standard library alone"),
    "strangers": ("models/a.py", UP, 1, "p.models.a imports p.methods.b.B: models and methods do not know each other"),
    "by name": ("methods/b.py", "import importlib\nimportlib.import_module('p.trial')\n", 2, "methods stands below trial"),
    "to measuring": ("store/db.py", "from ..cache import Slot\n", 1, "store works without torch, cache does not"),
    "to torch": ("report/page/b.py", "def f():\n    import torch\n", 2, "p.report.page.b imports torch: report works without torch"),
    "root": ("store/db.py", "from .. import frame\n", 1, "the root of the package only hands names on"),
    "eager command": ("cli/main.py", "from ..store import db\n@click.group()\ndef f(): ...\n", 1, "a command imports what it needs"),
    "no floor": ("extra.py", "", 1, "'extra' has no floor"),
    "cycle": ("cache/slot.py", "def f():\n    from . import Slot\n", 1, "import cycle: p.cache -> p.cache.slot -> p.cache"),
    "long file": ("methods/b.py", "\n" * 401, 401, "401 lines; a file here has at most 400"),
    "long function": ("methods/b.py", "\ndef f():\n" + "    1\n" * 60, 2, "f has 61 lines; a function has at most 60"),
    "vague": ("methods/b.py", "class CacheManager: ...\n", 1, "class CacheManager says nothing"),
    "misplaced": ("methods/b.py", "@METHODS.add('c')\nclass C: ...\n", 1, "'c' belongs into a file of that name"),
    "busy init": ("cache/__init__.py", "from .slot import Slot\nX = max(1, 2)\n", 2, "an __init__ file only hands names on"),
}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_checker_accepts_a_clean_tree(tmp_path: Path) -> None:
    assert check(write(tmp_path / "p", CLEAN)) == []


@pytest.mark.parametrize("fault", BROKEN)
def test_the_checker_finds(fault: str, tmp_path: Path) -> None:
    name, text, line, words = BROKEN[fault]
    found = check(write(tmp_path / "p", CLEAN | {name: text}))
    assert len(found) == 1, found
    assert words in found[0]
    where = "cache/__init__.py" if fault == "cycle" else name
    assert found[0].startswith(f"{tmp_path / 'p' / where}:{line}: ")
