"""Commits of a repository: separate checkouts, ``git bisect``, and the suspects of an incident."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import CachemarkError
from ..core.files import PACKAGE
from ..core.git import HASH, commit_of, git, run_git, unshallow
from ..core.wording import on_one_line
from ..gate.incidents import Incident
from ..store.rows import RunRecord

GOOD, BAD, SKIP = "good", "bad", "skip"
_ONLY_SKIPPED = "only 'skip'ped commits left"
_REMEDY = "Leave the worktree of the bisection alone while it runs, and try again."
_FOUND = re.compile(rf"^({HASH}) is the first bad commit", re.M)


def repository_of(folder: Path | None) -> Path:
    """Return the top folder of the given repository, else of the one around this package."""
    return Path(git(folder or PACKAGE, "rev-parse", "--show-toplevel"))


@contextmanager
def checkouts(repository: Path, names: Sequence[str]) -> Iterator[list[Path]]:
    """Check out commits as worktrees in temporary folders; the repository itself is not changed."""
    with tempfile.TemporaryDirectory(prefix="cachemark-") as root:
        folders = [Path(root, str(number)) for number in range(len(names))]
        try:
            for folder, name in zip(folders, names, strict=True):
                git(repository, "worktree", "add", "--detach", str(folder), commit_of(repository, name))
            yield folders
        finally:  # also of a worktree whose creation a signal interrupted, which git keeps locked: hence twice --force
            for folder in folders:
                with suppress(CachemarkError):  # it must not hide why the block ended
                    git(repository, "worktree", "remove", "--force", "--force", str(folder))


def code_of(folder: Path, name: str = "") -> str:
    """Return the folder of a checkout that the package is imported from.

    ``name``: the commit, for the error. Raises CachemarkError without a package, and Unsupported for another trial protocol.
    """
    folders = sorted(path.parent.parent for path in folder.glob("*/cachemark/__init__.py"))
    if not folders:
        raise CachemarkError(f"{folder} holds no copy of cachemark.", remedy="Name commits of a repository of cachemark.")
    from ..trial.identity import check_protocol  # imported here, so that commands that only read a store and git run without torch

    check_protocol(folders[0], f"The commit {name}" if name else f"The code in {folder}")
    return str(folders[0])


def search(repository: Path, good: str, bad: str, judge: Callable[[Path, str], str]) -> tuple[str, tuple[str, ...]]:
    """Return the first bad commit between two; empty if skipped commits leave several candidates.

    ``judge(folder, commit)`` returns ``good``, ``bad`` or ``skip``. Raises CachemarkError if ``good`` is not an ancestor of ``bad``.
    """
    good, bad = commit_of(repository, good), commit_of(repository, bad)
    if good == bad or run_git(repository, "merge-base", "--is-ancestor", good, bad).returncode:
        raise CachemarkError(f"{good[:12]} is not an ancestor of {bad[:12]}, as far as {repository} has commits.",
                             remedy=unshallow(repository) or "Set --good to an older commit of the same branch.")
    tried = set[str]()
    with checkouts(repository, [bad]) as (folder,), _bisecting(folder, good, bad) as output:
        while not (match := _FOUND.search(output)) and _ONLY_SKIPPED not in output.lower():
            commit = git(folder, "rev-parse", "HEAD")
            if commit in tried:
                raise CachemarkError(f"git bisect came back to {commit[:12]}, which was tested already.", remedy=_REMEDY)
            tried.add(commit)
            output = _answered(folder, judge(folder, commit))
    return (match[1], ()) if match else ("", tuple(re.findall(rf"^({HASH})$", output, re.M)))


@contextmanager
def _bisecting(folder: Path, good: str, bad: str) -> Iterator[str]:
    """A bisection in a worktree, whose state is its own."""
    try:
        yield git(folder, "bisect", "start", bad, good)
    finally:
        with suppress(CachemarkError):
            git(folder, "bisect", "reset")


def _answered(folder: Path, answer: str) -> str:
    """Mark the commit and return git's output.

    git exits with 2 if only skipped commits are left. Any other failure, such as changed files in the worktree, raises CachemarkError.
    """
    if answer not in (GOOD, BAD, SKIP):
        raise ValueError(f"{answer!r} is none of good, bad and skip")
    done = run_git(folder, "bisect", answer)
    output = done.stdout + done.stderr
    if done.returncode and not (done.returncode == 2 and _ONLY_SKIPPED in output.lower()):
        raise CachemarkError(f"git bisect {answer} failed: {' '.join(output.split())}", remedy=_REMEDY)
    return output


@dataclass(frozen=True)
class Suspects:
    """Commits after ``good``, the last good night, up to ``bad``: short name and subject, newest first.

    Empty if the repository does not have them."""

    good: str
    bad: str
    commits: tuple[str, ...] = ()


def suspects(incident: Incident, nights: Sequence[RunRecord], repository: Path | None = None) -> Suspects | None:
    """Return the suspect commits of an incident among ``nights`` (newest first), or None.

    Subjects come from ``repository`` (None: the one around this package).
    """
    since = next((k for k, night in enumerate(nights) if night.started[:10] < incident.since.isoformat()), 1)
    commits = [str(night.code.get("commit") or "")[:12] for night in nights]
    bad = incident.onset or next(iter(commits), "")
    good = next((commit for commit in commits[since:] if commit and commit != bad), "")
    if not (good and bad):
        return None
    try:
        folder = repository_of(repository)
        span = f"{commit_of(folder, good)}..{commit_of(folder, bad)}"
        lines = git(folder, "log", "--no-show-signature", "--format=%h %s", span).splitlines()
    except CachemarkError:  # an installed copy, or commits of another repository
        lines = []
    return Suspects(good, bad, tuple(on_one_line(text, 100) for text in lines))
