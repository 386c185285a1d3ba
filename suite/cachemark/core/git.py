"""Git commands in a folder, whatever repository the environment names, and the reasons of their failures."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from .errors import CachemarkError

_FOREIGN = frozenset(f"GIT_{name}" for name in (
    "DIR", "WORK_TREE", "INDEX_FILE", "COMMON_DIR", "OBJECT_DIRECTORY", "ALTERNATE_OBJECT_DIRECTORIES", "NAMESPACE", "PREFIX",
    "IMPLICIT_WORK_TREE", "GRAFT_FILE", "SHALLOW_FILE", "NO_REPLACE_OBJECTS", "REPLACE_REF_BASE", "QUARANTINE_PATH"))
"""Variables by which hooks and other callers select a repository or its parts. Settings (GIT_CONFIG_…) stay, as in git's own submodules."""
_PATIENCE = 300.0  # seconds
HASH = r"[0-9a-f]{64}|[0-9a-f]{40}"  # a full name of a commit, SHA-256 or SHA-1


def run_git(folder: Path | str, *arguments: str, timeout: float = _PATIENCE, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a git command in a folder with English output and without hooks; it reads ``stdin``.

    Raises CachemarkError where git does not run.
    """
    command = ["git", "-C", str(folder), "-c", f"core.hooksPath={os.devnull}", *arguments]
    own = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout, input=stdin,
                              env={**own, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"})
    except subprocess.TimeoutExpired:
        raise CachemarkError(f"git {arguments[0]} in {folder} took more than {timeout:g} s.", remedy="Look at its disk.") from None
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise CachemarkError("git is not installed, or not on PATH." if missing else f"git cannot be started: {error.strerror}.",
                             remedy="Install git." if missing else "Check its file permissions, or install it again.") from error


def git(folder: Path | str, *arguments: str, timeout: float = _PATIENCE, stdin: str = "") -> str:
    """Run git in a folder and return its output. Raises CachemarkError with the reason of a failure."""
    done = run_git(folder, *arguments, timeout=timeout, stdin=stdin)
    if done.returncode:
        raise failure(folder, done)
    return done.stdout.strip()


def failure(folder: Path | str, done: subprocess.CompletedProcess[str]) -> CachemarkError:
    """Return the error for a git command that failed in a folder."""
    text = done.stderr.strip() or done.stdout.strip()
    if "dubious ownership" in text or "unsafe repository" in text:
        place = match[1] if (match := re.search(r"repository(?: at)? \(?'([^']+)'", text)) else str(folder)
        return CachemarkError(f"git does not read the repository {place}: its owner is another user.",
                              remedy=f"If you trust it, run: git config --global --add safe.directory '{place}'")
    if "not a git repository" in text:
        return CachemarkError(f"{folder} is not in a git repository.", remedy="Use a clone of the repository.")
    lines = text.splitlines()
    words = " ".join(word for word in done.args[5:] if not word.startswith("-"))
    return CachemarkError(f"git {words} failed in {folder}: {lines[-1] if lines else done.returncode}.",
                          remedy="Name a repository, and commits that are in it.")


def commit_of(repository: Path | str, name: str) -> str:
    """Return the full name of a commit.

    Raises CachemarkError for an unknown name, with the reason if git knows it.
    """
    done = run_git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if not done.returncode:
        return done.stdout.strip()
    if done.stderr.strip() and "Needed a single revision" not in done.stderr:
        raise failure(repository, done)
    raise CachemarkError(f"{repository} has no commit {name!r}{', as it is a shallow clone' if is_shallow(repository) else ''}.",
                         remedy=unshallow(repository) or "Use a commit of that repository, or another --repository.")


def is_shallow(repository: Path | str) -> bool:
    """Return whether a repository lacks the commits before some of its own (``clone --depth``)."""
    return run_git(repository, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"


def unshallow(repository: Path | str) -> str:
    """Return how to fetch the older commits of a shallow clone, or an empty text for a complete one."""
    if not is_shallow(repository):
        return ""
    return f"Fetch the older commits: git -C '{repository}' fetch --unshallow (or set fetch-depth: 0 of actions/checkout)."
