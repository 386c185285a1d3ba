"""Suspect commits of a regression: their range, their subjects, and the bisect command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from cachemark.core.result import Environment
from cachemark.gate.incidents import Incident
from cachemark.gate.judgement import RunJudgement
from cachemark.plans.schema import Plan, load
from cachemark.store.db import Store
from cachemark.store.rows import RunRecord
from cachemark.workflows import check
from cachemark.workflows.check import nights_before
from cachemark.workflows.git import suspects
from support.repositories import git

ENVIRONMENT = Environment("cpu", "cpu-1", "f" * 16)
INCIDENT = Incident("key", "latency", "method", "linear", ("tiny-var linear 1/4, batch 4",), 1.2, date(2026, 1, 3))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A repository of twelve commits, the oldest first."""
    root, made = tmp_path_factory.mktemp("repository"), []
    git(root, "init", "-q")
    for number in range(12):
        git(root, "commit", "-q", "--allow-empty", "-m", f"Change number {number}")
        made.append(git(root, "rev-parse", "HEAD"))
    return root, made


def nights(commits: Sequence[str], **changes: object) -> tuple[RunRecord, ...]:
    """One run of the plan each day from 2026-01-01 on, the newest first."""
    held = [RunRecord(day, "demo", {}, f"2026-01-{day:02}T03:00:00+00:00", "", "finished", ENVIRONMENT, {"commit": commit})
            for day, commit in enumerate(commits, 1)]
    return tuple(replace(one, **changes) for one in reversed(held))  # type: ignore[arg-type]


def test_the_range_begins_at_the_last_night_without_it(repository: tuple[Path, list[str]]) -> None:
    root, made = repository
    suspect_range = suspects(replace(INCIDENT, onset=made[5][:12]), nights([made[1], made[3], made[5], made[7]]), root)
    assert suspect_range is not None
    assert (suspect_range.good, suspect_range.bad) == (made[3][:12], made[5][:12])
    assert [line.partition(" ")[2] for line in suspect_range.commits] == ["Change number 5", "Change number 4"]


@pytest.mark.parametrize("commits", [["aaa"], ["aaa", "aaa"], ["", "aaa"], []])
def test_without_an_earlier_night_of_another_commit_nothing_is_said(commits: list[str], tmp_path: Path) -> None:
    assert suspects(INCIDENT, nights(commits), tmp_path) is None


def test_a_notification_names_range_bisection_and_the_plans_file() -> None:
    own = nights(["a" * 40, "b" * 40, "c" * 40], plan="mine", plan_json={"file": "/plans/my own.toml"})
    lines = [*check.incident_lines(INCIDENT, own[0], RunJudgement(), own)]
    assert any(f"suspects: commits after {'b' * 12}, up to {'c' * 12}" in line for line in lines)
    assert lines[-2:] == [
        f"  find: cachemark bisect 'tiny-var linear 1/4, batch 4' --plan '/plans/my own.toml' --good {'b' * 12} --bad {'c' * 12}",
        f"  again: cachemark compare '/plans/my own.toml' --commits {'b' * 12} {'c' * 12} --only 'tiny-var linear 1/4, batch 4'"]
    first = nights(["a" * 40])
    lines = [*check.incident_lines(INCIDENT, first[0], RunJudgement(), first)]
    assert lines[-1] == "  again: cachemark run demo --fresh"


def test_a_store_knows_the_file_of_a_plan_and_the_nights_before_a_run(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('name = "own"\n[[cells]]\nmodel = "tiny-var"\nmethods = ["window"]\nbudgets = ["1/2"]\n')
    plan, shipped = load(str(own)), load("demo")
    assert plan.stored()["file"] == str(own)
    assert "file" not in shipped.stored()
    assert Plan.of_stored(plan.stored()).model_dump() == plan.model_dump()
    with Store.open(tmp_path / "store.sqlite") as store:
        for state, name in (("finished", "own"), ("failed", "own"), ("finished", "other"), ("finished", "own"), ("finished", "own")):
            store.finish_run(store.begin_run(name, plan.stored(), ENVIRONMENT, {"commit": "a" * 40}), state)
        assert [night.id for night in nights_before(store, store.run(4))] == [4, 1]
        assert store.run(4).stored_plan["file"] == str(own)
