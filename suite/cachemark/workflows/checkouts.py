"""Commits of a repository, each checked out in a folder of its own, so that both can run side by side."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..core.errors import CachemarkError
from ..machine.environment import PACKAGE
from ..trial.identity import check_protocol


def run_git(repository: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A git command in a repository, in English whatever the user's language. Raises CachemarkError where git does not run."""
    command, english = ["git", "-C", str(repository), *arguments], {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env=english)
    except (OSError, subprocess.SubprocessError) as error:
        raise CachemarkError(f"git {' '.join(arguments)} did not run: {error}.", remedy="Install git.") from error


def git(repository: Path | str, *arguments: str) -> str:
    """Output of a git command in a repository. Raises CachemarkError with what git said."""
    done = run_git(repository, *arguments)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise CachemarkError(f"git {' '.join(arguments)} failed in {repository}: {said[-1] if said else done.returncode}.",
                             remedy="Name a repository, and commits that are in it.")
    return done.stdout.strip()


def repository_of(given: Path | None) -> Path:
    """The top folder of a repository: the one given, else that of this copy of the package."""
    return Path(git(given or PACKAGE, "rev-parse", "--show-toplevel"))


def commit_of(repository: Path, name: str) -> str:
    """The full name of a commit."""
    return git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")


@contextmanager
def checkouts(repository: Path, names: Sequence[str]) -> Iterator[list[Path]]:
    """Folders with these commits. They are worktrees: the repository's own files and branches stay as they are."""
    with tempfile.TemporaryDirectory(prefix="cachemark-") as root:
        folders = []
        try:
            for number, name in enumerate(names):
                folder = Path(root, str(number))
                git(repository, "worktree", "add", "--detach", str(folder), commit_of(repository, name))
                folders.append(folder)
            yield folders
        finally:
            for folder in folders:
                git(repository, "worktree", "remove", "--force", str(folder))


def code_of(folder: Path, name: str = "") -> str:
    """The folder below a checkout from which the package is imported. Raises CachemarkError where there is none, and Unsupported where it
    is one whose trials cannot be run from here. ``name`` is that of the commit, for the error."""
    found = sorted(path.parent.parent for path in folder.glob("*/cachemark/__init__.py"))
    if not found:
        raise CachemarkError(f"{folder} holds no copy of cachemark.", remedy="Name commits of a repository of cachemark.")
    check_protocol(found[0], f"The commit {name}" if name else f"The code in {folder}")
    return str(found[0])
