"""The wheel: it works in an empty folder, with its weights and plans. The tools are of the repository, not of the wheel, and no command
of the wheel calls them."""

from __future__ import annotations

import email
import os
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from _pytest.assertion.rewrite import AssertionRewritingHook

from cachemark.core.version import __version__
from support.wheels import lay_out, of_the_repository

ROOT = Path(__file__).parents[2]
LARGEST = 40_000_000  # bytes, the bundled weights among them


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return of_the_repository(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What runs ``python -m cachemark`` in an empty folder, with the wheel alone on the path."""
    site, empty = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("empty")
    lay_out(wheel, site)

    def run(*arguments: str) -> str:
        done = subprocess.run([sys.executable, "-P", "-m", "cachemark", *arguments], cwd=empty, env={**os.environ, "PYTHONPATH": str(site)},
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run.folder, run.site = empty, site  # type: ignore[attr-defined]
    return run


def test_the_wheel_has_everything_that_the_package_reads(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        everything = set(archive.namelist())
    packed = {name for name in everything if name.startswith("cachemark/")}
    listed = subprocess.run(["git", "ls-files", "-z", "suite/cachemark"], cwd=ROOT, capture_output=True, check=True, text=True)
    there = {name.removeprefix("suite/") for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    assert there - packed == set()
    assert "cachemark/py.typed" in packed, "without it what plug-ins import has no types"
    assert {name.partition("/")[0] for name in everything - packed} == {f"cachemark-{__version__}.dist-info"}, "no example, no test"
    assert wheel.stat().st_size < LARGEST


def test_the_page_on_pypi_has_absolute_links_and_addresses_of_the_project(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        about = email.message_from_string(archive.read(name).decode())
    urls = dict(str(line).split(", ") for line in about.get_all("Project-URL", ()))
    assert urls.keys() >= {"Repository", "Documentation", "Changelog", "Issues"}
    text = str(about.get_payload())
    links = re.findall(r'(?:\]\(|src="|srcset=")([^)"\s]+)', text)
    assert all(link.startswith(("#", "https://")) for link in links)
    ours = [link.removeprefix(urls["Repository"]) for link in links if link.startswith(urls["Repository"])]
    pages = {kind: [link.partition("/main/")[2].partition("#")[0] for link in ours if link.startswith(f"/{kind}/")]
             for kind in ("blob", "raw")}
    assert pages["blob"]
    assert pages["raw"]
    assert all((ROOT / page).is_file() for page in (*pages["blob"], *pages["raw"]))
    assert all(page.endswith(".png") for page in pages["raw"])


def test_a_command_runs_from_the_wheel_in_an_empty_folder(installed: Any) -> None:
    assert "demo" in installed("list", "plans")


def test_the_citation_names_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (cited["version"], cited["license"], cited["title"].split(":")[0]) == (project["version"], project["license"], project["name"])


@pytest.mark.parametrize("tool", ["train", "cards"])
def test_a_tool_is_run_as_a_module(tool: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As ``python -m`` runs it, without a process that imports torch anew."""
    monkeypatch.setattr("sys.argv", [tool, "--help"])
    # Where the package is installed with its plug-in of pytest, pytest imports its modules, and runs none.
    monkeypatch.setattr("sys.meta_path", [finder for finder in sys.meta_path if not isinstance(finder, AssertionRewritingHook)])
    for loaded in [name for name in sys.modules if name.startswith("tools")]:
        monkeypatch.delitem(sys.modules, loaded)  # a test of this process may have imported it through that finder
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"tools.{tool}", run_name="__main__", alter_sys=True)
    assert not ended.value.code
    assert f"Usage: python -m tools.{tool}" in capsys.readouterr().out
