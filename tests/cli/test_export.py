"""The files that `cachemark export` writes for one stored run."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from support import stages
from support.stages import Stage, call

from .test_commands import good


@pytest.fixture(autouse=True)
def _no_child(measured: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stages.no_child(monkeypatch)


@pytest.fixture
def stage(measured: Stage, tmp_path: Path) -> Stage:
    return measured.copy(tmp_path / "copy")


@pytest.fixture
def baseline(stage: Stage) -> Path:
    good(call("baseline", "save", "--store", stage.store))
    (path,) = Path("baselines").glob("accepted/*/*.json")
    return path


@pytest.mark.parametrize(("verb", "part"), [
    (["markdown"], "| StreamingLLM | 1/2"), (["latex"], r"\toprule"),
    (["csv"], "run,commit,machine_class,case,"), (["csv", "--samples"], ",index,value"),
])  # fmt: skip
def test_a_text_is_printed_or_written(verb: list[str], part: str, measured: Stage) -> None:
    printed = good(call("export", *verb, "--store", measured.store))
    assert part in printed
    done = call("export", *verb, "out.txt", "--store", measured.store)
    assert good(done) == ""
    assert done.stderr == "Written: out.txt\n"
    assert Path("out.txt").read_text(encoding="utf-8") == printed


def test_csv_has_every_case_of_the_run(measured: Stage) -> None:
    rows = list(csv.DictReader(io.StringIO(good(call("export", "csv", "--store", measured.store)))))
    assert {row["case"] for row in rows} == {o.case.key for o in measured.outcomes().values()}
    raw = list(csv.DictReader(io.StringIO(good(call("export", "csv", "--samples", "--store", measured.store)))))
    assert len(raw) == sum(len(values) for o in measured.outcomes().values() for values in o.samples.values())


def test_junit_compares_with_the_accepted_baseline_or_a_given_one(stage: Stage, baseline: Path) -> None:
    for more in ([], ["--baseline", str(baseline)]):
        suite = ET.fromstring(good(call("export", "junit", "--store", stage.store, *more)).encode())[0]
        assert suite.get("failures") == suite.get("errors") == "0"
        assert "dot streaming 1/2" in {case.get("classname") for case in suite}


def test_github_appends_its_summary_and_writes_a_comment(stage: Stage, baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "step.md")
    Path("step.md").write_text("Before.\n")
    assert good(call("export", "github", "--store", stage.store, "--comment", "comment.md")) == ""  # nothing regressed
    assert Path("step.md").read_text().startswith("Before.\n## cachemark dots\n")
    assert "- Passed: " in Path("step.md").read_text()
    assert Path("comment.md").read_text().startswith("<!-- cachemark dots -->\n")


def test_github_without_a_baseline_shows_the_tables(measured: Stage) -> None:
    assert good(call("export", "github", "--store", measured.store, "--summary", "step.md")) == ""
    assert "Not compared with a baseline." in Path("step.md").read_text()
    assert "| StreamingLLM | 1/2" in Path("step.md").read_text()
