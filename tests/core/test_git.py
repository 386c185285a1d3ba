"""Git in a given folder: repositories that the environment names, formats of names, and reasons of failures."""

from pathlib import Path

import pytest

from cachemark.core.errors import CachemarkError
from cachemark.core.git import commit_of, git, run_git
from cachemark.workflows.git import BAD, GOOD, search
from support import repositories


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another project."""
    return repository(tmp_path_factory.mktemp("other"))


def repository(folder: Path, *options: str) -> Path:
    """Make a repository of five empty commits."""
    repositories.git(folder, "init", "-q", "-b", "main", *options)
    for number in range(5):
        repositories.git(folder, "commit", "-q", "--allow-empty", "-m", str(number))
    return folder


@pytest.mark.parametrize("variables", [("GIT_DIR",), ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"), ("GIT_COMMON_DIR", "GIT_DIR"), ()])
@pytest.mark.parametrize("format_", ["sha1", "sha256"])
def test_the_folder_alone_selects_the_repository(
    variables: tuple[str, ...], format_: str, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a hook of another project, whose HEAD stays."""
    folder = repository(tmp_path, f"--object-format={format_}")
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    commits = git(folder, "rev-list", "--reverse", "main").split()
    places = {"GIT_DIR": other / ".git", "GIT_COMMON_DIR": other / ".git", "GIT_WORK_TREE": other, "GIT_INDEX_FILE": other / ".git/index"}
    heads = [repositories.git(place, "log", "-1", "--format=%H %D") for place in (folder, other)]
    with monkeypatch.context() as patched:
        for variable in variables:
            patched.setenv(variable, str(places[variable]))
        first, _ = search(folder, commits[0], commits[-1], lambda _, commit: BAD if commits.index(commit) >= 3 else GOOD)
    assert first == commits[3]
    assert [repositories.git(place, "log", "-1", "--format=%H %D") for place in (folder, other)] == heads


@pytest.mark.parametrize(("variables", "depth", "reason"), [
    ({"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}, 9, r"owner is another user.*safe\.directory"),
    ({"PATH": "/nonexistent"}, 9, r"git is not installed"), ({}, 2, r"shallow clone.*--unshallow"), ({}, 0, r"is not in a git repository"),
    ({}, 9, r"has no commit 'main~9'\. Use a commit of that repository"),
])  # fmt: skip
def test_reasons_of_a_missing_commit_are_told_apart(
    variables: dict[str, str], depth: int, reason: str, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    if depth:
        repositories.git(other, "clone", "-q", "--depth", str(depth), f"file://{other}", str(tmp_path / "clone"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CachemarkError, match=reason):
        commit_of(tmp_path / "clone" if depth else tmp_path, "main~9" if depth == 9 else "main~3")


def test_ends_apart_in_a_shallow_clone_name_it(other: Path, tmp_path: Path) -> None:
    old, new = git(other, "rev-parse", "main~3", "main").split()
    repositories.git(tmp_path, "init", "-q")
    repositories.git(tmp_path, "-c", "uploadpack.allowAnySHA1InWant=true", "fetch", "-q", "--depth", "1", f"file://{other}", "main")
    repositories.git(other, "tag", "-f", "old", old)
    repositories.git(tmp_path, "fetch", "-q", "--depth", "1", f"file://{other}", "tag", "old")
    with pytest.raises(CachemarkError, match=r"not an ancestor.*--unshallow"):
        search(tmp_path, old, new, lambda *_: GOOD)
    assert run_git(tmp_path, "status").returncode == 0
