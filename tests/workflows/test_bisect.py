"""Bisection by git in a worktree of its own, over small repositories, with answers read from a file."""

from collections.abc import Callable, Sequence
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
from cachemark.trial.request import PROTOCOL
from cachemark.workflows import check
from cachemark.workflows import git as commits
from cachemark.workflows.check import nights_before
from cachemark.workflows.git import BAD, GOOD, SKIP, checkouts, code_of, commit_of, repository_of, search, suspects
from support.repositories import git


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seventeen commits; the file n counts them."""
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "-q", "-b", "main")
    for number in range(17):
        (folder / "n").write_text(str(number))
        git(folder, "add", "n")
        git(folder, "commit", "-q", "-m", f"commit {number}")
    return folder


def number(folder: Path) -> int:
    return int((folder / "n").read_text())


@pytest.mark.parametrize("first", [1, 8, 16])
def test_the_first_bad_commit_is_found(first: int, repository: Path) -> None:
    steps: list[int] = []

    def judge(folder: Path, commit: str) -> str:
        steps.append(number(folder))
        return BAD if steps[-1] >= first else GOOD

    commit, candidates = search(repository, "HEAD~16", "HEAD", judge)
    assert (git(repository, "show", f"{commit}:n"), candidates) == (str(first), ())
    assert 3 <= len(steps) <= 5


def test_what_cannot_be_told_is_skipped_and_the_rest_named(repository: Path) -> None:
    def judge(*skipped: int) -> Callable[[Path, str], str]:
        return lambda folder, commit: SKIP if number(folder) in skipped else BAD if number(folder) > 10 else GOOD

    commit, candidates = search(repository, "HEAD~16", "HEAD", judge(8, 9, 10))
    assert commit == ""
    assert sorted(int(git(repository, "show", f"{commit}:n")) for commit in candidates) == [8, 9, 10, 11]
    commit, _ = search(repository, "HEAD~16", "HEAD", judge(8))
    assert git(repository, "show", f"{commit}:n") == "11"


def test_the_repository_stays_as_it_is(repository: Path) -> None:
    def states() -> tuple[str, ...]:
        questions = (("status", "--porcelain"), ("branch", "-v"), ("worktree", "list"), ("log", "-1"))
        return tuple(git(repository, *words) for words in questions)

    before = states()

    def fails(folder: Path, commit: str) -> str:
        raise RuntimeError("in the middle")

    search(repository, "HEAD~16", "HEAD", lambda folder, commit: GOOD)
    with pytest.raises(RuntimeError, match="in the middle"):
        search(repository, "HEAD~16", "HEAD", fails)
    with pytest.raises(ValueError, match="none of good, bad and skip"):
        search(repository, "HEAD~16", "HEAD", lambda folder, commit: "perhaps")
    assert states() == before


def test_an_answer_that_git_refuses_ends_the_bisection(repository: Path) -> None:
    """With a changed file in the worktree, git would return the same commit forever."""
    def touches(folder: Path, commit: str) -> str:
        (folder / "n").write_text("changed")
        return GOOD

    with pytest.raises(CachemarkError, match=r"git bisect good failed: .*would be overwritten"):
        search(repository, "HEAD~16", "HEAD", touches)


def test_ends_that_are_none_are_refused(repository: Path) -> None:
    for good, bad in (("HEAD", "HEAD~3"), ("HEAD", "HEAD")):
        with pytest.raises(CachemarkError, match="is not an ancestor"):
            search(repository, good, bad, lambda folder, commit: GOOD)
    with pytest.raises(CachemarkError, match=f"{repository} has no commit 'nothing'"):
        search(repository, "nothing", "HEAD", lambda folder, commit: GOOD)
    with pytest.raises(CachemarkError, match=r"has no commit '--help'.*another --repository"):
        commit_of(repository, "--help")


def test_a_checkout_without_the_package_is_refused(repository: Path) -> None:
    with checkouts(repository, ["HEAD", "HEAD~16"]) as (new, old):
        assert (number(new), number(old)) == (16, 0)
        with pytest.raises(CachemarkError, match="no copy of cachemark"):
            code_of(new)
        (new / "suite" / "cachemark").mkdir(parents=True)
        (new / "suite" / "cachemark" / "__init__.py").touch()
        with pytest.raises(Unsupported, match=r"The commit HEAD speaks a protocol without a number.*Compare commits that share a protocol"):
            code_of(new, "HEAD")
        (new / "suite" / "cachemark" / "trial").mkdir()
        (new / "suite" / "cachemark" / "trial" / "request.py").write_text(f"PROTOCOL = {PROTOCOL}\n")
        assert code_of(new) == str(new / "suite")
    assert repository_of(repository) == repository
    with pytest.raises(CachemarkError, match="not in a git repository"):
        repository_of(Path("/"))


def test_a_signal_while_a_worktree_is_created_leaves_none(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


ENVIRONMENT = Environment("cpu", "cpu-1", "f" * 16)
INCIDENT = Incident("key", "latency", "method", "linear", ("tiny-var linear 1/4, batch 4",), 1.2, date(2026, 1, 3))


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A repository of twelve commits, the oldest first."""
    root, made = tmp_path_factory.mktemp("repository"), []
    git(root, "init", "-q")
    for number in range(12):
        git(root, "commit", "-q", "--allow-empty", "-m", f"Change number {number}")
        made.append(git(root, "rev-parse", "HEAD"))
    return root, made


def nights(commits: Sequence[str], **changes: object) -> tuple[RunRecord, ...]:
    """One run of the plan each day from 2026-01-01 on, the newest first."""
    records = [RunRecord(day, "demo", {}, f"2026-01-{day:02}T03:00:00+00:00", "", "finished", ENVIRONMENT, {"commit": commit})
            for day, commit in enumerate(commits, 1)]
    return tuple(replace(record, **changes) for record in reversed(records))  # type: ignore[arg-type]


def test_the_range_begins_at_the_last_night_without_it(twelve: tuple[Path, list[str]]) -> None:
    root, made = twelve
    suspect_range = suspects(replace(INCIDENT, onset=made[5][:12]), nights([made[1], made[3], made[5], made[7]]), root)
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
