"""Sixty faults, one for each guarantee, and whether the tests notice them.

``python -m tools.planted_faults TREE`` copies a source tree, plants one fault at a time in the copy and runs the tests that own the
guarantee. They must pass without the fault and fail with it. A fault whose text is gone is reported, so that the table is kept up.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

SUITE = Path("suite/cachemark")
PYTEST = ("-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not gpu")
PRELOADED = ("torch", "scipy.stats", "sqlalchemy.orm", "hypothesis", "jinja2")
PATIENCE = 1800  # seconds until tests count as hanging
NOTICED, MISSED, GONE, BROKEN = "noticed", "MISSED", "text is gone", "tests fail without it"


class Fault(NamedTuple):
    """A change of one line: ``old`` becomes ``new`` in the first ``file`` of the package that has it once.

    ``file`` may name several places, of older and newer trees. ``tests``: files and folders that must notice."""

    guarantee: str
    file: str
    old: str
    new: str
    tests: str


FAULTS = tuple(Fault(**row) for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["fault"])


def run(tree: Path, tests: Sequence[str]) -> int:
    """Run test files of a tree, those that exist in it; return the exit code of pytest.

    In a copy of this process, which has imported what takes longest and nothing of a tree."""
    paths = [f"tests/{test}" for test in tests if (tree / "tests" / test).exists()]
    for name in PRELOADED:
        importlib.import_module(name)
    if not (copy := os.fork()):
        signal.alarm(PATIENCE)
        os.chdir(tree)
        os.environ |= {"PYTHONPATH": str(tree / "suite"), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path[:] = [str(tree), str(tree / "suite"), *sys.path[1:]]
        sys.modules.pop("tools")
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        os._exit(int(pytest.main([*PYTEST, *paths])))
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])


def planted(tree: Path, fault: Fault) -> str:
    """Return whether the tests notice a fault in ``tree``, which is the same afterwards."""
    texts = {path: path.read_text() for name in fault.file.split() if (path := tree / SUITE / name).is_file()}
    places = [(path, text) for path, text in texts.items() if text.count(fault.old) == 1]
    if not places:
        return GONE
    path, text = places[0]
    path.write_text(text.replace(fault.old, fault.new))
    try:
        return NOTICED if run(tree, fault.tests.split()) == 1 else MISSED
    finally:
        path.write_text(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each fault; return 1 unless the tests notice all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--only", default="", help="faults whose guarantee or file contains this text")
    parser.add_argument("--json", type=Path, help="write the results by guarantee into this file, and skip those that it has")
    parser.add_argument("--green", action="store_true", help="the tests are known to pass: do not run them without a fault")
    options = parser.parse_args(arguments)
    chosen = [fault for fault in FAULTS if options.only in fault.guarantee or options.only in fault.file]
    results: dict[str, str] = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    chosen = [fault for fault in chosen if results.get(fault.guarantee) != NOTICED]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(options.tree, tree, ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__"), symlinks=True)
        passes: dict[str, bool] = {}
        for fault in chosen:
            if fault.tests not in passes and not options.green:
                passes[fault.tests] = run(tree, fault.tests.split()) == 0
            results[fault.guarantee] = planted(tree, fault) if passes.get(fault.tests, options.green) else BROKEN
            print(f"{results[fault.guarantee]:>8}  {fault.file}: {fault.guarantee}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    return int(any(results[fault.guarantee] != NOTICED for fault in chosen))


if __name__ == "__main__":
    sys.exit(main())
