"""Check, backup and pruning of a store."""

from __future__ import annotations

import sqlite3
from collections.abc import Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import Session

from ..core.errors import BadStore
from ..core.verdicts import REGRESSED
from .database import file_of, guard
from .db import Store
from .rows import COMPARISON
from .schema import ArtifactRow, BaselineRow, LeaseRow, MembershipRow, OutcomeRow, RunRow, SampleRow, TrialRow, VerdictRow

NIGHTS = 365


def check(store: Store) -> list[str]:
    """Return all problems: damaged pages, broken references, unreadable rows, missing artifacts."""
    problems = []
    if (path := file_of(store.where)) is not None:
        with guard(store.where), closing(sqlite3.connect(path)) as connection:  # SQLite checks no constraints on a read-only connection
            messages = [str(message) for (message,) in connection.execute("PRAGMA quick_check")]
            problems += [message for message in messages if message != "ok"]
            references = connection.execute("PRAGMA foreign_key_check").fetchall()
            problems += [f"{table} {row}: refers to a missing row of {parent}" for table, row, parent, _ in references]
    with store._reading() as session:
        files = session.scalars(select(ArtifactRow.file).distinct().order_by(ArtifactRow.file)).all()
    try:
        for run in store.runs():
            store.outcomes(run.id)
    except BadStore as error:
        problems.append(error.message)
    return problems + [f"artifact {file}: is missing" for file in files if not store.artifacts.path(file).is_file()]


def backup(source: Path, target: Path) -> None:
    """Copy a SQLite database to a new file in one transaction, also while others write to it."""
    if target.exists():
        raise BadStore(f"{target} exists already.", remedy="Name a new file.")
    with guard(str(source)), closing(sqlite3.connect(source)) as connection:
        connection.execute("VACUUM INTO ?", [str(target)])


@dataclass(frozen=True)
class Pruned:
    """Numbers of deleted runs, outcomes and files, the bytes of these files, and the number of kept runs."""

    runs: int
    outcomes: int
    files: int
    nbytes: int
    kept: int


def prune(store: Store, nights: int = NIGHTS, *, dry: bool = True) -> Pruned:
    """Delete all runs but those of the newest ``nights``, with their artifacts; with ``dry``, only count.

    Nights are the start dates of runs. Runs behind a baseline, runs with a regression, and runs whose outcomes a kept run reuses are kept.
    """
    with store._reading() if dry else store._writing() as session:
        days = {run: started[:10] for run, started in session.execute(select(RunRow.id, RunRow.started))}
        newest = sorted(set(days.values()), reverse=True)[:nights]
        kept = {run for run, day in days.items() if day in newest}
        kept |= set(session.scalars(select(RunRow.id).join(BaselineRow).where(RunRow.plan.not_like(f"{COMPARISON}%"))))
        kept |= set(session.scalars(select(VerdictRow.run_id).where(VerdictRow.verdict == REGRESSED)))
        reused = select(TrialRow.run_id).join(OutcomeRow).join(MembershipRow)
        while more := set(session.scalars(reused.where(MembershipRow.run_id.in_(kept)))) - kept:
            kept |= more
        gone = days.keys() - kept
        outcomes = select(OutcomeRow.id).join(TrialRow).where(TrialRow.run_id.in_(gone))
        count = session.scalar(select(func.count()).select_from(outcomes.subquery())) or 0
        files = set(session.scalars(select(ArtifactRow.file).where(ArtifactRow.outcome_id.in_(outcomes))))
        if not dry:
            _delete(session, gone, outcomes)
    with store._reading() as session:  # again, because another process may have saved the same content meanwhile
        files -= set(session.scalars(select(ArtifactRow.file).where(ArtifactRow.outcome_id.not_in(outcomes))))
    paths = [path for path in map(store.artifacts.path, sorted(files)) if path.is_file()]
    nbytes = sum(path.stat().st_size for path in paths)
    for path in () if dry else paths:  # after the rows that named them: an interruption leaves files that nothing names
        path.unlink(missing_ok=True)
    return Pruned(len(gone), count, len(paths), nbytes, len(kept))


def _delete(session: Session, runs: Set[int], outcomes: Select[Any]) -> None:
    """Delete the rows of runs and of their outcomes."""
    for part in (SampleRow, ArtifactRow, MembershipRow):
        session.execute(delete(part).where(part.outcome_id.in_(outcomes)))
    session.execute(delete(OutcomeRow).where(OutcomeRow.trial_id.in_(select(TrialRow.id).where(TrialRow.run_id.in_(runs)))))
    for owned in (LeaseRow, MembershipRow, VerdictRow, BaselineRow, TrialRow):
        session.execute(delete(owned).where(owned.run_id.in_(runs)))
    session.execute(delete(RunRow).where(RunRow.id.in_(runs)))
