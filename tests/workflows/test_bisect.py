"""Bisection by git in a worktree of its own, over small repositories, with answers read from a file."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from cachemark.core.errors import CachemarkError, Unsupported
from cachemark.core.result import Environment
from cachemark.gate.incidents import Incident
from cachemark.gate.judgement import RunJudgement
from cachemark.plans.schema import Plan, load
from cachemark.store.db import Store
from cachemark.store.rows import RunRecord
from cachemark.workflows import check, git as commits
from cachemark.workflows.git import GOOD, checkouts, code_of, commit_of, repository_of, search, suspects
from support.repositories import git


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "-q", "-b", "main")
    for number in range(17):
        (folder / "n").write_text(str(number))
        git(folder, "add", "n")
        git(folder, "commit", "-q", "-m", f"commit {number}")
    return folder


def test_the_repository_stays_as_it_is_however_a_bisection_ends(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def states() -> tuple[str, ...]:
        questions = (("status", "--porcelain"), ("branch", "-v"), ("worktree", "list"), ("log", "-1"))
        return tuple(git(repository, *words) for words in questions)

    def fails(folder: Path, commit: str) -> str:
        raise RuntimeError("in the middle")

    def touches(folder: Path, commit: str) -> str:
        (folder / "n").write_text("changed")  # git would return the same commit forever
        return GOOD

    before = states()
    search(repository, "HEAD~16", "HEAD", lambda folder, commit: GOOD)
    for judge, error, words in ((fails, RuntimeError, "in the middle"), (lambda *_: "perhaps", ValueError, "none of good, bad and skip"),
                                (touches, CachemarkError, r"git bisect good failed: .*would be overwritten")):
        with pytest.raises(error, match=words):
            search(repository, "HEAD~16", "HEAD", judge)
    assert states() == before
    real = commits.git

    def interrupted(folder: Path, *words: str) -> str:
        output = real(folder, *words)
        if words[:2] == ("worktree", "add"):
            real(folder, "worktree", "lock", words[3])  # as git does until all files are there
            raise KeyboardInterrupt
        return output

    monkeypatch.setattr(commits, "git", interrupted)
    with pytest.raises(KeyboardInterrupt), checkouts(repository, ["HEAD", "HEAD~1"]):
        pass
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_ends_that_are_none_and_a_checkout_without_the_package_are_refused(repository: Path) -> None:
    for good, bad, words in (("HEAD", "HEAD~3", "not an ancestor"), ("HEAD", "HEAD", "not an ancestor"), ("none", "HEAD", "no commit")):
        with pytest.raises(CachemarkError, match=words):
            search(repository, good, bad, lambda folder, commit: GOOD)
    for name in ("nothing", "--help"):
        with pytest.raises(CachemarkError, match=f"{repository} has no commit '{name}'.*another --repository"):
            commit_of(repository, name)
    with checkouts(repository, ["HEAD", "HEAD~16"]) as (new, old):
        assert [int((folder / "n").read_text()) for folder in (new, old)] == [16, 0]
        with pytest.raises(CachemarkError, match="no copy of cachemark"):
            code_of(new)
        (new / "suite" / "cachemark").mkdir(parents=True)
        (new / "suite" / "cachemark" / "__init__.py").touch()
        with pytest.raises(Unsupported, match=r"The commit HEAD speaks a protocol without a number.*Compare commits that share a protocol"):
            code_of(new, "HEAD")
    assert repository_of(repository) == repository
    with pytest.raises(CachemarkError, match="not in a git repository"):
        repository_of(Path("/"))


ENVIRONMENT = Environment("cpu", "cpu-1", "f" * 16)
INCIDENT = Incident("key", "latency", "method", "linear", ("tiny-var linear 1/4, batch 4",), 1.2, date(2026, 1, 3))


def nights(commits: Sequence[str], **changes: object) -> tuple[RunRecord, ...]:
    records = [RunRecord(day, "demo", {}, f"2026-01-{day:02}T03:00:00+00:00", "", "finished", ENVIRONMENT, {"commit": commit})
            for day, commit in enumerate(commits, 1)]
    return tuple(replace(record, **changes) for record in reversed(records))  # type: ignore[arg-type]


def test_a_notification_names_range_bisection_and_the_plans_file(repository: Path) -> None:
    made = git(repository, "log", "--reverse", "--format=%H").splitlines()
    suspect_range = suspects(replace(INCIDENT, onset=made[5][:12]), nights([made[1], made[3], made[5], made[7]]), repository)
    assert (suspect_range.good, suspect_range.bad) == (made[3][:12], made[5][:12])
    assert [line.partition(" ")[2] for line in suspect_range.commits] == ["commit 5", "commit 4"]
    for without_another in (["aaa"], ["aaa", "aaa"], ["", "aaa"], []):
        assert suspects(INCIDENT, nights(without_another), repository) is None
    own = nights(["a" * 40, "b" * 40, "c" * 40], plan="mine", plan_json={"file": "/plans/my own.toml"})
    lines = [*check.incident_lines(INCIDENT, own[0], RunJudgement(), own)]
    assert any(f"suspects: commits after {'b' * 12}, up to {'c' * 12}" in line for line in lines)
    assert lines[-2:] == [
        f"  find: cachemark bisect 'tiny-var linear 1/4, batch 4' --plan '/plans/my own.toml' --good {'b' * 12} --bad {'c' * 12}",
        f"  again: cachemark compare '/plans/my own.toml' --commits {'b' * 12} {'c' * 12} --only 'tiny-var linear 1/4, batch 4'"]
    for facts, more in (({}, ""), ({"cuda": "13.0"}, " --device cuda")):
        first = nights(["a" * 40], environment=replace(ENVIRONMENT, facts=facts))
        *_, last = check.incident_lines(INCIDENT, first[0], RunJudgement(), first)
        assert last == f"  again: cachemark run demo --fresh{more}"


def test_a_store_knows_the_file_of_a_plan_and_the_nights_before_a_run(tmp_path: Path) -> None:
    (own := tmp_path / "own.toml").write_text('name = "own"\n[[cells]]\nmodel = "tiny-var"\nmethods = ["window"]\n')
    plan = load(str(own))
    assert (plan.stored()["file"], "file" in load("demo").stored()) == (str(own), False)
    assert Plan.of_stored(plan.stored()).model_dump() == plan.model_dump()
    with Store.open(tmp_path / "store.sqlite") as store:
        for state, name in (("finished", "own"), ("failed", "own"), ("finished", "other"), ("finished", "own"), ("finished", "own")):
            store.finish_run(store.begin_run(name, plan.stored(), ENVIRONMENT, {"commit": "a" * 40}), state)
        assert [night.id for night in check.nights_before(store, store.run(4))] == [4, 1]
