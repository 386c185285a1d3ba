"""Decisions of reviewers: accepted baselines, and acknowledged or accepted incidents."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Literal

from ..core.errors import NothingMeasured
from ..gate import baselines, incidents
from ..gate.baselines import ListedBaseline
from ..gate.incidents import Incident
from ..store.db import Store
from .check import accepted_path, chosen
from .session import DEFAULT_STORE, reading


def accept(
    how: Literal["save", "promote", "rebase"], store: str | Path = DEFAULT_STORE, *, run: int | None = None,
    root: Path = baselines.ROOT, name: str | None = None, reason: str = "", days: int = baselines.DAYS,
) -> Path:
    """Make a finished run (None: the newest) an accepted baseline below ``root`` and return its file.

    ``save`` writes the first of its name and machine, ``promote`` replaces one of the same environment, ``rebase`` one of another and
    starts a new series. It expires after ``days``, 0: never. Raises BadBaseline.
    """
    with Store.open(store, create=False) as target:
        record = chosen(target, run)
        if how == "save":
            baselines.refuse_present(record, root, name)
            return baselines.save(target, record.id, root, name, reason=reason, days=days)
        return baselines.promote(target, record.id, root, name, reason=reason, days=days, upgraded=how == "rebase")


def accepted(root: Path = baselines.ROOT) -> list[ListedBaseline]:
    """List every baseline below ``root``."""
    return baselines.list_(root)


def known_incidents(register: Path) -> list[Incident]:
    """List the incidents of a register."""
    return incidents.load(register)


def acknowledge_incident(register: Path, key: str, who: str, until: date | None, link: str = "") -> None:
    """Record who decided on an incident, and until when; without ``until`` it is accepted as it is."""
    incidents.save(register, incidents.acknowledge(incidents.load(register), key, who, until, link))


def baseline_commit(store: Store | str | Path = DEFAULT_STORE, *, run: int | None = None, baseline: str | Path | None = None) -> str:
    """Return the commit of the baseline of a run (None: the newest).

    Raises BadBaseline without a baseline, and NothingMeasured if it was not measured at a clean commit.
    """
    with reading(store) as source:
        accepted_baseline = baselines.load(baseline or accepted_path(chosen(source, run)))
    if accepted_baseline.code.get("dirty") or not (commit := str(accepted_baseline.code.get("commit") or "")):
        raise NothingMeasured(f"{accepted_baseline.source} was measured in no commit, or in a changed working tree: there is nothing to "
                              "compare with.", remedy="Promote a run of a commit: cachemark baseline promote --reason …")
    return commit
