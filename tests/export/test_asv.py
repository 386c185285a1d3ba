"""Files for asv: their contents, and how asv reads them."""

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asv_runner.statistics import compute_stats

from cachemark.core.errors import Unsupported
from cachemark.core.result import Environment, Outcome
from cachemark.export.asv import Written, write
from cachemark.store.db import Store
from report import report_sample as sample
from support.repositories import git

FIRST = 1_700_000_000
STEP, COUNT, AT = 1.12, 24, 12


def repository(folder: Path, count: int) -> list[str]:
    """A repository with so many commits, an hour apart, on the branch main."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for number in range(count):
        git(folder, "commit", "--quiet", "--allow-empty", "-m", str(number), when=f"{FIRST + 3600 * number} +0000")
    return git(folder, "rev-list", "--reverse", "HEAD").splitlines()


def save(store: Store, commit: str, outcomes: Sequence[Outcome], environment: Environment = sample.ENVIRONMENT, dirty: bool = False) -> int:
    run = store.begin_run("demo", {}, environment, {"commit": commit, "dirty": dirty, "hash": "h", "version": "0.1.0"})
    for outcome in outcomes:
        store.save(run, replace(outcome, artifacts={}))
    return run


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("origin") / "repo"
    return folder, repository(folder, 2)


@pytest.fixture
def commits(origin: tuple[Path, list[str]]) -> list[str]:
    return origin[1]


@pytest.fixture
def here(tmp_path: Path, origin: tuple[Path, list[str]]) -> Path:
    (tmp_path / "repo").symlink_to(origin[0])
    return tmp_path


@pytest.fixture
def store(here: Path) -> Store:
    return Store.open(here / "s.sqlite")


def exported(store: Store, here: Path) -> Written:
    return write(store, here / "results", here / "repo")


def benchmarks(here: Path) -> dict[str, Any]:
    return dict(json.loads((here / "results" / "benchmarks.json").read_text()))


def results(of: Path) -> dict[str, dict[str, float | None]]:
    data = json.loads(of.read_text())
    assert data["result_columns"][:3] == ["result", "params", "version"]
    return {name.rpartition(".")[2]: dict(zip(row[1][0], row[0], strict=True)) for name, row in data["results"].items()}


def test_a_commit_and_a_machine_are_a_file_and_a_comparison_is_no_point_of_a_history(store: Store, here: Path, commits: list[str]) -> None:
    other = replace(sample.ENVIRONMENT, machine_class="gpu-example", facts={**sample.ENVIRONMENT.facts, "torch": "2.10.1+cu128"})
    for commit in commits:
        save(store, commit, [sample.full()])
    save(store, commits[1], [sample.full()], other)
    written = exported(store, here)
    assert [str(file.relative_to(here / "results")) for file in written.files] == [
        f"cpu-example-8/{commits[0][:8]}-cachemark-py3-12-torch2-9.json", f"cpu-example-8/{commits[1][:8]}-cachemark-py3-12-torch2-9.json",
        f"gpu-example/{commits[1][:8]}-cachemark-py3-12-torch2-10.json"]
    data = json.loads(written.files[1].read_text())
    assert (data["commit_hash"], data["date"], data["version"]) == (commits[1], 1000 * (FIRST + 3600), 2)
    assert data["params"] == {"machine": "cpu-example-8", "device": "Example CPU, 8 threads", "python": "3.12", "torch": "2.9"}
    machine = json.loads((here / "results" / "gpu-example" / "machine.json").read_text())
    assert (machine["machine"], machine["version"]) == ("gpu-example", 1)
    points = [file.read_text() for file in written.files]
    pairs = store.begin_run("compare/demo", {}, sample.ENVIRONMENT, {"commit": commits[1], "dirty": False, "hash": "h", "version": "0.1.0"})
    store.save(pairs, sample.measured(sample.full(), latency=[9.0]))  # both sides are of one case, and one may be of another commit
    again = exported(store, here)
    assert ([file.read_text() for file in again.files], again.left_out) == (points, ())


def test_versions_and_units_are_those_of_the_definitions(store: Store, here: Path, commits: list[str]) -> None:
    save(store, commits[0], [sample.full(), sample.candidate("linear", "1/4")])
    (file,) = exported(store, here).files
    known_names = benchmarks(here)
    assert known_names.pop("version") == 2
    cell = sample.full().case.cell[:8]
    assert known_names[f"tiny-llamagen.{cell}.latency"] == {
        "name": f"tiny-llamagen.{cell}.latency", "code": known_names[f"tiny-llamagen.{cell}.latency"]["code"], "param_names": ["case"],
        "params": [["'full'", "'linear 1/4'"]], "type": "track", "unit": "seconds", "version": "1", "timeout": 600,
        "pretty_name": "tiny-llamagen (batch 16, s64, float32, eager): Latency"}  # fmt: skip
    assert known_names[f"tiny-llamagen.{cell}.kv_logical"]["unit"] == "bytes"
    for name, (_, params, version, *_) in json.loads(file.read_text())["results"].items():
        assert (params, version) == (known_names[name]["params"], known_names[name]["version"])


def test_a_case_without_figures_is_a_gap_and_references_are_not_drawn(store: Store, here: Path, commits: list[str]) -> None:
    save(store, commits[0], sample.outcomes())
    save(store, commits[1], sample.mixed())
    before, after = (results(file) for file in exported(store, here).files)
    assert before["latency"]["'rkv 1/4'"] is not None
    assert after["latency"]["'rkv 1/4'"] is None
    assert set(before["latency"]) == {f"'{o.case.label}'" for o in sample.outcomes() if o.case.role in ("candidate", "baseline")}


def test_runs_that_belong_to_no_commit_are_left_out_and_named(store: Store, here: Path, commits: list[str]) -> None:
    for commit, dirty in (("", False), ("0" * 40, False), ("--all", False), (commits[0], True)):
        save(store, commit, [sample.full()], dirty=dirty)
    written = exported(store, here)
    assert (written.files, (here / "results").exists()) == ((), False)
    assert written.left_out == ("run 1: its commit is not known", f"run 2: its commit 000000000000 is not in {here / 'repo'}",
                                f"run 3: its commit --all is not in {here / 'repo'}",
                                "run 4: its working tree had changes that are in no commit")


def test_what_is_there_stays_and_new_cases_are_appended(store: Store, here: Path, commits: list[str]) -> None:
    save(store, commits[0], [sample.full(), sample.candidate("window", "1/4")])
    exported(store, here)
    path = here / "results" / "benchmarks.json"
    foreign = {"name": "mine.time_it", "params": [], "param_names": [], "type": "time", "unit": "seconds", "version": "abc"}
    path.write_text(json.dumps({**benchmarks(here), "mine.time_it": foreign}))
    with Store.open(here / "other.sqlite") as other:
        save(other, commits[1], [sample.candidate("linear", "1/4"), sample.full()])
        exported(other, here)
    known_names = benchmarks(here)
    assert known_names["mine.time_it"] == foreign
    assert known_names[f"tiny-llamagen.{sample.full().case.cell[:8]}.latency"]["params"] == [["'full'", "'window 1/4'", "'linear 1/4'"]]


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1}', '{"a": 1, "version": 2}'])
def test_a_list_of_another_kind_is_refused(text: str, store: Store, here: Path, commits: list[str]) -> None:
    (here / "results").mkdir()
    (here / "results" / "benchmarks.json").write_text(text)
    save(store, commits[0], [sample.full()])
    with pytest.raises(Unsupported, match="not a list of benchmarks"):
        exported(store, here)
    assert (here / "results" / "benchmarks.json").read_text() == text


def history(store: Store, commits: list[str]) -> None:
    stream = random.Random("history")
    for number, commit in enumerate(commits):
        factor = STEP if number >= AT else 1.0
        values = []
        for outcome, change in ((sample.full(), 1.0), (sample.candidate("linear", "1/4"), factor),
                                (sample.candidate("window", "1/4"), 1 / factor)):
            shake = [change * (1 + 0.01 * stream.gauss(0, 1)) for _ in range(5)]
            values.append(sample.measured(outcome, latency=[2 * s for s in shake], tokens_per_s_last=[1800 / s for s in shake]))
        save(store, commit, values)


def test_asv_draws_the_export_and_finds_the_step(store: Store, here: Path) -> None:
    (here / "repo").unlink()
    commits = repository(here / "repo", COUNT)
    history(store, commits)
    exported(store, here)
    config = {"version": 1, "project": "x", "repo": "repo", "branches": ["main"], "environment_type": "existing", "pythons": ["same"],
              "results_dir": "results", "html_dir": "html"}  # fmt: skip
    (here / "asv.conf.json").write_text(json.dumps(config))
    call = [sys.executable, "-m", "asv", "publish", "--no-pull"]
    done = subprocess.run(call, cwd=here, capture_output=True, text=True, env={**os.environ, "HOME": str(here)}, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert not [word for word in ("Couldn't find", "Skipping", "unknown", "malformed") if word in text], text
    values = json.loads((here / "html" / "regressions.json").read_text())["regressions"]
    cell = sample.full().case.cell[:8]
    slower = {f"tiny-llamagen.{cell}.{name}('linear 1/4')" for name in ("latency", "seconds_per_token_last")}
    assert {entry[0] for entry in values} == slower  # not the window, which became faster, nor the full cache
    revisions = json.loads((here / "html" / "index.json").read_text())["revision_to_hash"]
    for entry in values:
        assert [revisions[str(jump[1])] for jump in entry[6]] == [commits[AT]]
    (graph,) = (here / "html" / "graphs").glob(f"branch-main/**/tiny-llamagen.{cell}.latency.json")
    assert len(json.loads(graph.read_text())) == COUNT


@pytest.mark.parametrize("repeats", [1, 2, 5, 8, 30])
def test_intervals_are_those_of_asv(repeats: int, store: Store, here: Path, commits: list[str]) -> None:
    values = [2 + 0.01 * number for number in range(repeats)]
    save(store, commits[0], [sample.measured(sample.full(), latency=values)])
    data = json.loads(exported(store, here).files[0].read_text())
    (row,) = [dict(zip(data["result_columns"], row, strict=True)) for name, row in data["results"].items() if name.endswith(".latency")]
    _, expected = compute_stats(values, 1)
    assert {name: row[f"stats_{name}"][0] for name in expected} == expected
    assert math.isfinite(row["stats_ci_99_b"][0]) == (repeats > 1)
