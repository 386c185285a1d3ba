"""Bisection by ``git bisect`` in a worktree of its own, for the first commit that a function calls bad."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import CachemarkError
from .checkouts import checkouts, commit_of, git, run_git

GOOD, BAD, SKIP = "good", "bad", "skip"
_ONLY_SKIPPED = "only 'skip'ped commits left"
_REMEDY = "Leave the worktree of the bisection alone while it runs, and try again."
_FOUND = re.compile(r"^([0-9a-f]{40}) is the first bad commit", re.M)


@dataclass(frozen=True)
class Searched:
    """Result of a bisection. ``commit`` is the first bad one, or empty where skipped commits leave several, which ``left`` names.
    ``steps``: every commit that was tried, with the answer."""

    commit: str
    left: tuple[str, ...]
    steps: tuple[tuple[str, str], ...]


def search(repository: Path, good: str, bad: str, judge: Callable[[Path, str], str]) -> Searched:
    """Find the first bad commit between two. ``judge`` gets a folder with the commit to try, and its name, and answers ``good``, ``bad`` or
    ``skip``. Raises CachemarkError where ``good`` is no ancestor of ``bad``."""
    good, bad = commit_of(repository, good), commit_of(repository, bad)
    if good == bad or git(repository, "merge-base", good, bad) != good:
        raise CachemarkError(f"{good[:12]} is not an ancestor of {bad[:12]}.", remedy="Give --good an older commit of the same branch.")
    with checkouts(repository, [bad]) as (folder,), _bisecting(folder, good, bad) as said:
        steps: list[tuple[str, str]] = []
        while not (found := _FOUND.search(said)) and _ONLY_SKIPPED not in said.lower():
            commit = git(folder, "rev-parse", "HEAD")
            if commit in (tried for tried, _ in steps):
                raise CachemarkError(f"git bisect came back to {commit[:12]}, which was judged already.", remedy=_REMEDY)
            steps.append((commit, judge(folder, commit)))
            said = _answered(folder, steps[-1][1])
        left = () if found else tuple(re.findall(r"^([0-9a-f]{40})$", said, re.M))
        return Searched(found[1] if found else "", left, tuple(steps))


@contextmanager
def _bisecting(folder: Path, good: str, bad: str) -> Iterator[str]:
    """A bisection in a worktree, whose state is its own."""
    try:
        yield git(folder, "bisect", "start", bad, good)
    finally:
        with suppress(CachemarkError):
            git(folder, "bisect", "reset")


def _answered(folder: Path, answer: str) -> str:
    """Output of git for an answer. Where only skipped commits are left it ends with 2, and its output names them; any other failure, such
    as files that somebody has changed in the worktree, raises CachemarkError."""
    if answer not in (GOOD, BAD, SKIP):
        raise ValueError(f"{answer!r} is none of good, bad and skip")
    done = run_git(folder, "bisect", answer)
    said = done.stdout + done.stderr
    if done.returncode and not (done.returncode == 2 and _ONLY_SKIPPED in said.lower()):
        raise CachemarkError(f"git bisect {answer} failed: {' '.join(said.split())}", remedy=_REMEDY)
    return said
