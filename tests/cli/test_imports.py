"""Imports of commands: no torch for reading and checking, nothing heavy for help."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from cachemark.cli import main
from support.stages import Stage

PROBE = """
import json, sys
class Absent:
    # Importing these fails, as where they are not installed; None in sys.modules is taken for the module by SciPy.

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
import click.testing
from cachemark.cli import main
for arguments in json.loads(sys.argv[1]):
    result = click.testing.CliRunner().invoke(main, arguments)
    wrong = result.exception if not isinstance(result.exception, SystemExit) else None
    print(json.dumps([result.exit_code, repr(wrong) if wrong else "", sorted(m for m in sys.modules if "." not in m)]))
"""
HEAVY = {"torch", "numpy", "sqlalchemy", "pydantic", "pandas", "scipy", "altair", "jinja2", "PIL", "rich"}


def probe(commands: list[list[str]], folder: Path, *absent: str) -> list[tuple[int, str, list[str]]]:
    """Run commands in a fresh process; return exit code, unexpected exception and loaded modules of each."""
    call = [sys.executable, "-c", PROBE, json.dumps(commands), *absent]
    return [*map(json.loads, subprocess.run(call, stdout=subprocess.PIPE, text=True, cwd=folder, check=True).stdout.splitlines())]


def test_help_loads_nothing_heavy_and_what_reads_and_judges_works_without_torch(tmp_path: Path, measured: Stage) -> None:
    helps = [["--help"], ["--version"], *([name, "--help"] for name in main.commands),
             ["baseline", "save", "--help"], ["export", "csv", "--help"], ["weights", "fetch", "--help"]]
    wrong = [["rnu"], ["run"], ["run", "demo", "--bogus"], ["list", "model"], ["show", "--run", "0"]]
    for arguments, (code, exception, modules) in zip(helps + wrong, probe(helps + wrong, tmp_path), strict=True):
        assert (code, exception) == (0 if arguments in helps else 2, ""), arguments
        assert not {*modules} & HEAVY, arguments
    shutil.copytree(measured.folder, tmp_path / "copy")
    store = ["--store", str(tmp_path / "copy" / measured.store.name)]
    commands = [["list", "metrics"], ["list", "runs", *store], ["weights", "list"], ["weights", "list", "var-d16", "--json"],
                ["show", *store], ["show", "full", *store, "--json"], ["baseline", "save", *store], ["baseline", "list"], ["check", *store],
                ["check", *store, "--json"], ["report", "page.html", *store],
                *(["export", verb, *store] for verb in ("markdown", "latex", "csv", "junit", "github"))]
    endings = probe(commands, tmp_path, "torch")
    assert [(code, exception) for code, exception, _ in endings] == [(0, "")] * len(commands)
    assert (tmp_path / "page.html").stat().st_size > 1000
