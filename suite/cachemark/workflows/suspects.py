"""The commits among which the cause of an incident lies: those since the last night without it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import CachemarkError
from ..core.wording import count, on_one_line
from ..gate.incidents import Incident
from ..store.rows import RunRecord
from .git import commit_of, git, repository_of

SHOWN = 8  # subjects of commits in a report of an incident


@dataclass(frozen=True)
class Suspects:
    """Commits after ``good``, the last at which nights were good, up to ``bad``, each as its short name and its subject, the newest first;
    none where the repository does not know them."""

    good: str
    bad: str
    commits: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """The range in words."""
        many = f" ({count(len(self.commits), 'commit')})" if self.commits else ""
        return f"after {self.good}, up to {self.bad}{many}"

    @property
    def shown(self) -> list[str]:
        """A line for each of the newest commits, and how many more there are."""
        more = [f"and {len(self.commits) - SHOWN} more"] if len(self.commits) > SHOWN else []
        return [*self.commits[:SHOWN], *more]

    def bisect(self, plan: str, case: str) -> str:
        """The command that finds the commit."""
        return shlex.join(["cachemark", "bisect", case, "--plan", plan, "--good", self.good, "--bad", self.bad])


def suspects(incident: Incident, nights: Sequence[RunRecord], repository: Path | None = None) -> Suspects | None:
    """Those of an incident among ``nights``, the newest first and tonight's at the head; None where no earlier one is of another commit.
    Subjects are those of ``repository`` (None: that around this package)."""
    since = next((k for k, night in enumerate(nights) if incident.since and night.started[:10] < incident.since), 1)
    named = [str(night.code.get("commit") or "")[:12] for night in nights]
    bad = incident.onset or next(iter(named), "")
    good = next((name for name in named[since:] if name and name != bad), "")
    return Suspects(good, bad, _subjects(repository, good, bad)) if good and bad else None


def _subjects(repository: Path | None, good: str, bad: str) -> tuple[str, ...]:
    try:
        where = repository_of(repository)
        first, last = (commit_of(where, name) for name in (good, bad))
        lines = git(where, "log", "--format=%h %s", f"{first}..{last}").splitlines()
    except CachemarkError:  # an installed copy, or commits of another repository
        return ()
    return tuple(on_one_line(text, 100) for text in lines)
