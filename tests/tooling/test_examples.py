"""The packages in ``examples/`` are what a user's would be: installed, found by name, proven by the kit, and measured beside ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachemark.core import registry
from cachemark.kit.metric_checks import MetricExample
from cachemark.kit.runner import metric_checks
from cachemark.plugins.loading import require
from support.kit import passes_at_the_smallest_size, run_all
from support.stages import call, forgetting
from support.wheels import ROOT, build, lay_out, tracked

EXAMPLES = {
    "cachemark-knorm": ("methods", "knorm"), "cachemark-gpt": ("models", "gpt"), "cachemark-colourfulness": ("metrics", "colourfulness"),
}  # fmt: skip
TOP = """
name = "examples"
[timing]
warmup = 1
repeats = 3
[fidelity]
samples = 2
"""
ON_GPT = TOP + '[[cells]]\nmodel = "gpt"\nmethods = ["window", "knorm"]\nbudgets = ["1/2"]\nbatch = 2\n'
ON_OURS = 'metrics = ["colourfulness"]\n' + ON_GPT.replace("gpt", "tiny-llamagen")


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


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_found_by_its_name(name: str, site: Path) -> None:
    kind, thing = EXAMPLES[name]
    (row,) = [each for each in json.loads(call("list", kind, "--json").output) if each["name"] == thing]
    assert (row["origin"], row["version"], row.get("refused")) == (name, "0.1.0", None)
    assert {path.name for path in site.iterdir()} >= {name.replace("-", "_"), f"{name.replace('-', '_')}-0.1.0.dist-info"}


def test_the_method_passes_the_kit_at_the_smallest_size(site: Path) -> None:
    require("methods", ["knorm"])
    passes_at_the_smallest_size("knorm")


def test_the_model_passes_the_kit(site: Path) -> None:
    done = call("test", "model", "gpt")
    assert done.exit_code == 0, done.output
    assert "11 passed, 0 failed, 1 skipped" in done.output


def test_the_metric_passes_the_kit(site: Path) -> None:
    require("metrics", ["colourfulness"])
    results = run_all(metric_checks(MetricExample(registry.metrics.get("colourfulness"))))
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


def measured(plan: str, folder: Path) -> tuple[str, str]:
    """What `show` prints of a plan that has run, and its report."""
    (folder / "plan.toml").write_text(plan, encoding="utf-8")
    ran = call("run", folder / "plan.toml", "--store", folder / "s.sqlite", "--report", folder / "page.html", "--threads", "1", "--json")
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["not_ok"] == []
    return call("show", "--store", folder / "s.sqlite").output, (folder / "page.html").read_text(encoding="utf-8")


def test_the_method_stands_beside_ours_on_the_model(site: Path, tmp_path: Path) -> None:
    table, page = measured(ON_GPT, tmp_path)
    assert all(f"gpt  {label}" in table for label in ("full", "window 1/2", "knorm 1/2")), table
    assert "knorm" in page


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_method_and_metric_stand_beside_ours_on_our_model(site: Path, tmp_path: Path) -> None:
    table, page = measured(ON_OURS, tmp_path)
    assert all(f"tiny-llamagen  {label}" in table for label in ("full", "window 1/2", "knorm 1/2")), table
    assert "kl " in table
    rows = [line for line in table.splitlines() if "tiny-llamagen" in line]
    assert all(re.search(r"colourfulness_[0-9a-f]{12} [0-9.]+ \(mean\)", row) for row in rows), table
    assert "knorm" in page
    assert "Colourfulness" in page
