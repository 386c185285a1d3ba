"""The shape of the package: who may import whom (contracts in pyproject.toml, checked by import-linter), and how long things may be."""

import ast
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "suite" / "cachemark"
CONTRACTS = {each["id"]: each for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]}
WITHOUT_TORCH = [name.partition(".")[2] for name in CONTRACTS["torch"]["source_modules"]]  # they work on machines that cannot measure
MAX_FILE, MAX_MODEL, MAX_FUNCTION = 400, 350, 60
VAGUE = ("Manager", "Handler", "Util", "Utils", "Helper")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts on the package in a folder."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache",
               str(ROOT / "pyproject.toml")]
    return subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False)


def test_a_package_imports_those_below_it() -> None:
    linted = lint(PACKAGE.parent)
    assert linted.returncode == 0, linted.stdout
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in linted.stdout


WRONG = {  # by the contract that it breaks: a file and its line
    "layers": ("core/a.py", "from cachemark.cli import b"), "strangers": ("models/a.py", "def f():\n    from ..methods import b"),
    "commands": ("cli/a.py", "from ..store import b"), "torch": ("store/a.py", "from ..core import a\nimport torch"),
    "core": ("core/b.py", "import numpy"), "cycles": ("cache/b.py", "from . import a"),
}


def test_each_wrong_import_breaks_its_contract(tmp_path: Path) -> None:
    for room in CONTRACTS["layers"]["layers"]:
        (folder := tmp_path / "cachemark" / room).mkdir(parents=True)
        for name in ("__init__", "a", "b"):
            (folder / f"{name}.py").write_text("from . import b\n" if (room, name) == ("cache", "a") else "")
    (tmp_path / "cachemark" / "__init__.py").touch()
    assert lint(tmp_path).returncode == 0
    for file, line in WRONG.values():
        (tmp_path / "cachemark" / file).write_text(f"{line}\n")
    linted = lint(tmp_path)
    assert WRONG.keys() == CONTRACTS.keys()
    assert linted.stdout.count(" BROKEN") == len(CONTRACTS), linted.stdout


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in a node, without what they are made of."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, name, ()):
            yield inner
            yield from statements(inner)


def size_faults(file: Path, most: int) -> Iterator[str]:
    """Yield a file and functions that are too long, and class names that describe nothing."""
    if (lines := len(file.read_text(encoding="utf-8").splitlines())) > most:
        yield f"{file}: {lines} lines; a file here has at most {most}"
    for node in statements(parsed(file)):
        if isinstance(node, ast.FunctionDef) and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION:
            yield f"{file}:{node.lineno}: {node.name} has {length} lines; a function has at most {MAX_FUNCTION}"
        if isinstance(node, ast.ClassDef) and node.name.endswith(VAGUE):
            yield f"{file}:{node.lineno}: class {node.name} describes nothing; name it after what it is"


def test_files_and_functions_keep_their_size(tmp_path: Path) -> None:
    folders = (PACKAGE, *(ROOT / name for name in ("tests", "tools", "studies", "benchmarks")))
    files = [file for folder in folders for file in folder.rglob("*.py")]
    faults = [fault for file in files for fault in size_faults(file, MAX_MODEL if PACKAGE / "models" in file.parents else MAX_FILE)]
    assert not faults, "\n" + "\n".join(faults)
    (long := tmp_path / "long.py").write_text("class CacheManager:\n    def f(self):\n" + "        1\n" * 60 + "\n" * 400)
    assert len([*size_faults(long, MAX_FILE)]) == 3


def test_init_files_compute_nothing_and_a_method_is_in_the_file_of_its_name() -> None:
    allowed = ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign | ast.Expr | ast.If
    nodes = [(file, node) for file in PACKAGE.rglob("__init__.py") for node in parsed(file).body if not isinstance(node, ast.FunctionDef)]
    busy = [f"{file}:{node.lineno}" for file, node in nodes
            if not isinstance(node, allowed) or any(isinstance(inner, ast.Call) for inner in ast.walk(node))]
    assert nodes
    assert not busy
    for file in (PACKAGE / "methods").glob("*.py"):
        decorators = [call for node in parsed(file).body if isinstance(node, ast.ClassDef) for call in node.decorator_list]
        for call in decorators:
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(("method", "METHODS.add")):
                assert ast.literal_eval(call.args[0]).replace("-", "_") == file.stem, file


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


def test_what_judges_leaves_torch_out_and_a_lookup_imports_one_file_of_those_in_the_folder() -> None:
    """A new method edits nothing elsewhere."""
    files = [file for room in (*WITHOUT_TORCH, "cli") for file in (PACKAGE / room).rglob("*.py") if file.name != "__main__.py"]
    names = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for file in sorted(files)]
    ran = subprocess.run([sys.executable, "-c", PROBE], input=json.dumps(names), capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr
    torch, methods, looked_up = json.loads(ran.stdout)
    assert torch == ["cachemark.cache.slot"], "the first that needs it, which shows that the probe can tell"
    assert {name.replace("-", "_") for name in methods} == {f.stem for f in (PACKAGE / "methods").glob("*.py")} - {"__init__", "registry"}
    assert looked_up == ["window"]
