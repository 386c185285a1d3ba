"""``cachemark report --site``: a folder that a nightly job brings up to date."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cachemark.analysis import report_view
from cachemark.core.errors import NothingMeasured
from cachemark.gate import anchors
from cachemark.store.db import Store
from cachemark.workflows import report as report_workflow
from support import stages
from support.stages import Stage, call

from .test_commands import good


@pytest.fixture(autouse=True)
def _no_child(measured: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stages.no_child(monkeypatch)


@pytest.fixture
def stage(measured: Stage, tmp_path: Path) -> Stage:
    return measured.copy(tmp_path / "copy")


def test_a_site_grows_with_its_store(stage: Stage) -> None:
    good(call("baseline", "save", "--store", stage.store))
    said = good(call("report", "--site", "site", "--store", stage.store))
    assert said.strip() == f"Site: {Path('site/index.html')}; 1 new pages, 0 removed"
    page = Path("site/runs/run-1.html")
    assert "Passed" in Path("site/index.html").read_text(encoding="utf-8")
    page.write_text("mine", encoding="utf-8")
    assert "0 new pages" in good(call("report", "--site", "site", "--store", stage.store))
    assert page.read_text(encoding="utf-8") == "mine"  # what is there stays


@pytest.mark.parametrize("name", ["größe", "_x", "-a"])
def test_a_stored_plan_that_no_baseline_can_be_called_after_is_shown_without_one(name: str, stage: Stage) -> None:
    with closing(sqlite3.connect(stage.store)) as connection:
        connection.execute("UPDATE run SET plan = ?", (name,))
        connection.commit()
    good(call("report", "report.html", "--store", stage.store))
    good(call("report", "--site", "site", "--store", stage.store))
    good(call("export", "github", "--comment", "comment.md", "--store", stage.store))
    assert "Not compared with a baseline." in Path("comment.md").read_text(encoding="utf-8")
    assert "begin with a letter or digit" in call("check", "--store", stage.store).stderr


def test_an_accepted_baseline_without_a_case_of_the_run_is_left_out_and_a_given_one_is_refused(stage: Stage) -> None:
    """After an edit of the plan, results are still shown."""
    good(call("baseline", "save", "--store", stage.store))
    (accepted,) = Path("baselines/accepted").rglob("*.json")
    accepted.write_text(accepted.read_text(encoding="utf-8").replace('"repeats": 3', '"repeats": 7'), encoding="utf-8")
    assert call("check", "--store", stage.store).exit_code == NothingMeasured.exit_code
    good(call("report", "report.html", "--store", stage.store))
    good(call("export", "github", "--comment", "comment.md", "--store", stage.store))
    assert "Not compared with a baseline." in Path("comment.md").read_text(encoding="utf-8")
    for command in (("report", "other.html"), ("export", "github"), ("export", "junit")):
        refused = call(*command, "--baseline", accepted, "--store", stage.store)
        assert refused.exit_code == NothingMeasured.exit_code
        assert "share no case" in refused.output
    assert not Path("other.html").exists()


def test_only_pages_whose_run_baseline_or_code_has_changed_are_built(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    real = report_view.build
    monkeypatch.setattr(report_view, "build", lambda run, *rest, **more: (built.append(run.plan), real(run, *rest, **more))[1])

    def rebuilt() -> list[str]:
        built.clear()
        good(call("report", "--site", "site", "--store", stage.store))
        return list(built)

    assert rebuilt() == ["dots"]
    first = Path("site/index.html").read_bytes()
    assert rebuilt() == []
    assert Path("site/index.html").read_bytes() == first, "the list says the same without a page being built"
    with Store.open(stage.store) as store:
        run = store.run(1)
        store.finish_run(store.begin_run("compare/dots", {}, run.environment, run.code), "finished")
    assert sorted(rebuilt()) == ["compare/dots", "dots"], "a comparison is listed without a baseline, and told of on its plan's pages"
    good(call("baseline", "save", "--run", 1, "--store", stage.store))
    assert rebuilt() == ["dots"]
    monkeypatch.setattr(anchors, "load", lambda: [anchors.ReachedAnchor(anchors.shipped()["mar-l"], "weights", 5.0, {})])
    assert sorted(rebuilt()) == ["compare/dots", "dots"], "an anchor was reached"
    monkeypatch.setattr(report_workflow, "_code", lambda: "another version")
    assert sorted(rebuilt()) == ["compare/dots", "dots"]
    Path("site/runs/run-2.html").unlink()
    assert rebuilt() == ["compare/dots"]
    Path("site/site.json").write_text("{}")
    assert len(rebuilt()) == 2, "a site of an earlier version is built anew"


def test_pages_of_old_runs_go(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    good(call("report", "--site", "site", "--store", stage.store))
    from cachemark.report.page import site

    monkeypatch.setattr(site, "too_old", lambda started, now, days: days < 30)
    assert "1 removed" in good(call("report", "--site", "site", "--days", "7", "--store", stage.store))
    assert list(Path("site/runs").iterdir()) == []
    assert "No run is recent enough" in Path("site/index.html").read_text(encoding="utf-8")


def test_a_run_that_the_baseline_does_not_fit_is_listed_without_a_verdict(stage: Stage) -> None:
    good(call("baseline", "save", "--store", stage.store))
    (path,) = Path("baselines").glob("accepted/*/*.json")
    with Store.open(stage.store) as store:
        run = store.run(1)
        other = store.begin_run("another plan", {}, run.environment, run.code)
        store.finish_run(other, "finished")
    good(call("report", "--site", "site", "--baseline", path, "--store", stage.store))
    text = Path("site/index.html").read_text(encoding="utf-8")
    assert "Passed" in text
    assert "no baseline" in text
