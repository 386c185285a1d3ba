"""The packages in ``examples/`` are what a user's would be: installed, found by name, proven by the kit, and measured beside ours."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachemark.core import registry
from cachemark.kit.metric_checks import MetricExample
from cachemark.kit.runner import metric_checks
from cachemark.plans import schema
from cachemark.plans.expand import expand
from cachemark.plugins.loading import load, require
from support.examples import short_plan
from support.kit import passes_at_the_smallest_size
from support.stages import call, forgetting
from support.wheels import ROOT, build, lay_out, of_the_installed, of_the_repository, tracked
from test_docs import blocks

EXAMPLES = {
    "cachemark-knorm": ("methods", "knorm"), "cachemark-gpt": ("models", "gpt"), "cachemark-colourfulness": ("metrics", "colourfulness")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples are installed, each from its wheel."""
    tree, site = tracked(tmp_path_factory.mktemp("tree"), "examples"), tmp_path_factory.mktemp("site")
    assert sorted(folder.name for folder in (tree / "examples").iterdir() if folder.is_dir()) == sorted(EXAMPLES)
    for name in EXAMPLES:
        build(tree / "examples" / name, "build_wheel", tree)
        (wheel,) = tree.glob(f"{name.replace('-', '_')}-*.whl")
        lay_out(wheel, site)
    return site


@pytest.fixture
def site(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the examples are installed, on the path of this process until a test ends."""
    monkeypatch.syspath_prepend(str(built))
    with forgetting():
        yield built


def test_each_is_found_by_its_name_and_the_method_and_the_metric_pass_the_kit(site: Path) -> None:
    for name, (kind, entry) in EXAMPLES.items():
        (row,) = [each for each in json.loads(call("list", kind, "--json").output) if each["name"] == entry]
        assert (row["origin"], row["version"], row.get("refused")) == (name, "0.1.0", None)
        assert {path.name for path in site.iterdir()} >= {name.replace("-", "_"), f"{name.replace('-', '_')}-0.1.0.dist-info"}
    require("methods", ["knorm"])
    passes_at_the_smallest_size("knorm")
    require("metrics", ["colourfulness"])
    results = [check.run() for check in metric_checks(MetricExample(registry.metrics.get("colourfulness")))]
    assert [result.name for result in results if not result.passed] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_its_own_tests_pass(name: str, site: Path) -> None:
    """As its author runs them; one of them runs the kit."""
    path = os.pathsep.join([str(site), str(ROOT / "suite")])
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=ROOT / "examples" / name, check=False,
                          env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.rpartition(" passed")[0].split()[-1]) >= 2, done.stdout


def test_the_method_stands_beside_ours_on_the_model(site: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(short_plan('model = "gpt"\nmethods = ["window", "knorm"]\nbudgets = ["1/2"]'))
    store, page = tmp_path / "s.sqlite", tmp_path / "page.html"
    ran = call("run", tmp_path / "plan.toml", "--store", store, "--report", page, "--threads", "1", "--json")
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["not_ok"] == []
    table = call("show", "--store", store).output
    assert all(f"gpt  {label}" in table for label in ("full", "window 1/2", "knorm 1/2")), table
    assert "knorm" in page.read_text(encoding="utf-8")


PAGE = ROOT / "docs" / "tutorials" / "your-first-method.md"
BLOCKS = blocks(PAGE.read_text(encoding="utf-8"))
NO_NETWORK = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_IGNORE_INSTALLED": "1", "PIP_REQUIRE_VIRTUALENV": "1", "PIP_NO_CACHE_DIR": "1"}


def test_its_method_is_short_and_sound_and_its_plan_sets_it_beside_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in BLOCKS:
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert Path("keyangle.py").read_text(encoding="utf-8").count("\n") <= 25
    with forgetting():
        assert load("keyangle.py") == ["keyangle"]
        passes_at_the_smallest_size("keyangle")
        plan, _ = schema.prepare("newcomer.toml", ["keyangle.py"])
        candidates = [planned.case for planned in expand(plan) if planned.case.role == "candidate"]
    for model in ("tiny-llamagen", "tiny-t2i"):
        assert sorted(case.method for case in candidates if case.model == model) == ["keyangle", "random", "rkv", "streaming", "window"]


def unmeasured(line: str) -> str:
    """A line without its values."""
    return " ".join(re.sub(r"\d[\d.,]*", "0", line).split())


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_it_prints_what_stands_there(tmp_path: Path) -> None:
    wheel = of_the_repository(tmp_path / "built")
    folder = tmp_path / "empty"
    folder.mkdir()
    shutil.copy(wheel, folder)
    venv = folder / "venv"
    # pip must be that of the new environment: with the path of this process it would install into the environment of the tests.
    path = os.pathsep.join([str(venv / "bin"), str(Path(sys.base_prefix) / "bin"), "/usr/bin", "/bin"])
    index = of_the_installed("setuptools", tmp_path).parent  # with which pip builds a package in an environment of its own
    environment = {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **NO_NETWORK, "PATH": path,
                   "PIP_FIND_LINKS": str(index)}
    subprocess.run(["python3", "-m", "venv", venv], env=environment, check=True)
    assert (venv / "bin" / "pip").is_file()
    beside = venv / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages" / "beside.pth"
    beside.write_text(sysconfig.get_path("purelib") + "\n")  # what cachemark needs is there, as if it had been fetched
    for block, said in zip(BLOCKS, [*BLOCKS[1:], BLOCKS[0]], strict=True):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        if block.file or block.language == "text":  # which is what the block before it prints
            continue
        commands = "\n".join(line.removeprefix("$ ") for line in block.text.splitlines())
        done = subprocess.run(["bash", "-e", "-c", commands], cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (venv / "bin" / "cachemark").is_file(), "installed there, and nowhere else"
        printed = iter([unmeasured(line) for line in done.stdout.splitlines()])
        for line in said.text.splitlines() if said.language == "text" else ():
            assert line == "…" or unmeasured(line) in printed, f"{line!r} in\n{done.stdout}"
    assert {"keyangle", "tiny-llamagen", "tiny-t2i"} <= set(re.findall(r"[\w-]+", (folder / "newcomer.html").read_text(encoding="utf-8")))
