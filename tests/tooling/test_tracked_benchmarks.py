"""The benchmarks of this repository run as CONTRIBUTING.md describes: one by asv, and all by pytest-benchmark into a store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.tracked.benchmarks import METHODS, Generations
from cachemark.cli import main
from cachemark.machine.affinity import torch_threads
from support.repositories import git

ROOT = Path(__file__).parents[2]
PIECE = "lazymar selection"


def test_asv_measures_a_piece_and_publishes_it(tmp_path: Path) -> None:
    config = json.loads((ROOT / "asv.conf.json").read_text())
    repository = tmp_path / "repository"  # its one commit stands for the measured code: the suite may have been unpacked without git
    git(tmp_path, "init", "-q", "-b", "main", str(repository))
    git(repository, "commit", "-q", "--allow-empty", "-m", "measured")
    commit = git(repository, "rev-parse", "HEAD")
    folders = {"repo": str(repository), "benchmark_dir": str(ROOT / config["benchmark_dir"]), "branches": ["main"],
               "results_dir": str(tmp_path / "results"), "html_dir": str(tmp_path / "html")}
    (tmp_path / "asv.conf.json").write_text(json.dumps(config | folders))
    environment = os.environ | {"HOME": str(tmp_path)}
    for arguments in (["machine", "--yes"], ["run", "--quick", "--bench", PIECE, "--set-commit-hash", commit], ["publish"]):
        command = [sys.executable, "-m", "asv", *arguments]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=240)
    [results] = (tmp_path / "results").glob(f"*/{commit[:8]}-*.json")
    stored = json.loads(results.read_text())
    [row] = stored["results"].values()
    values = dict(zip(row[1][0], row[0], strict=True))
    assert values[repr(PIECE)] > 0
    assert (tmp_path / "html" / "index.html").exists()


@pytest.mark.parametrize("model", METHODS)
def test_every_generation_is_tracked(model: str) -> None:
    generations, nbytes = Generations(), list[int]()
    with torch_threads(1):
        for method in Generations.params[1]:
            generations.setup(model, method)
            nbytes.append(generations.track_kv_bytes(model, method))
    full, tracked = nbytes
    assert full == 0 < tracked if model == "tiny-mar" else 0 < tracked <= full


def test_the_micro_benchmarks_are_stored_judged_and_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    micro, store = tmp_path / "micro.json", f"sqlite:///{tmp_path / 'results.sqlite'}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "benchmarks", "-k", "not 240",
               "--benchmark-json", micro, "--benchmark-max-time", "0.05", "--benchmark-min-rounds", "2"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # a worker of xdist times nothing
    subprocess.run(command, check=True, capture_output=True, timeout=240, env=environment)
    for arguments in (["ingest", "pytest-benchmark", str(micro)], ["baseline", "save"], ["check"], ["export", "csv", "metrics.csv"]):
        result = CliRunner().invoke(main, [*arguments, "--store", store])
        assert result.exit_code == 0, result.output
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert any("test_selection" in row and "latency" in row for row in rows)
