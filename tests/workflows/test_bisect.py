"""Bisection by git in a worktree of its own, over small repositories, with answers read from a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cachemark.core.errors import CachemarkError, Unsupported
from cachemark.trial.request import PROTOCOL
from cachemark.workflows import git as commits
from cachemark.workflows.git import BAD, GOOD, SKIP, checkouts, code_of, commit_of, repository_of, search
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
