"""Check, backup and pruning of a store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import delete, func, select

from ..core.errors import BadStore
from ..core.verdicts import REGRESSED
from .database import file_of, guard
from .db import Advanced, Store, files_of, unheard
from .rows import verdicts_of
from .schema import MembershipRow, OutcomeRow, RunRow

NIGHTS = 365


def check(store: Store, advanced: Advanced = unheard) -> list[str]:
    """Return all problems: damaged pages, broken references, unreadable rows, missing artifacts.

    ``advanced`` is called with the name of the items, the number read so far, and the total.
    """
    problems = []
    if (path := file_of(store.where)) is not None:
        with guard(store.where), closing(sqlite3.connect(path)) as connection:  # SQLite checks no constraints on a read-only connection
            messages = [str(message) for (message,) in connection.execute("PRAGMA quick_check")]
            problems += [message for message in messages if message != "ok"]
            references = connection.execute("PRAGMA foreign_key_check").fetchall()
            problems += [f"{table} {row}: refers to a missing row of {parent}" for table, row, parent, _ in references]
    try:
        files, runs = set[str](), store.runs()
        for done, run in enumerate(runs, 1):
            files |= {file for outcome in store.outcomes(run.id) for file in outcome.artifacts.values()}
            advanced("runs", done, len(runs))
        missing = [file for file in sorted(files) if not store.artifacts.path(file).is_file()]
        problems += [f"artifact {file}: is missing from {store.artifacts.root}" for file in missing]
    except BadStore as error:
        problems.append(error.message)
    return problems


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
    """Delete all runs except the newest ``nights``, with their artifacts; with ``dry``, only count.

    Nights are the start dates of runs. Runs of a baseline, runs with a regression, and runs whose outcomes a kept run reuses are kept.
    """
    with store._reading() if dry else store._writing() as session:
        runs = session.scalars(select(RunRow)).all()
        newest = sorted({run.started[:10] for run in runs}, reverse=True)[:nights]
        kept_ids = {run.id for run in runs
                    if run.kept or run.started[:10] in newest or any(v.verdict == REGRESSED for v in verdicts_of(run))}
        reused = select(OutcomeRow.run_id).join(MembershipRow)
        while more := set(session.scalars(reused.where(MembershipRow.run_id.in_(kept_ids)))) - kept_ids:
            kept_ids |= more
        gone = {run.id for run in runs} - kept_ids
        of_gone = OutcomeRow.run_id.in_(gone)
        count, files = session.scalar(select(func.count(OutcomeRow.id)).where(of_gone)) or 0, files_of(session, of_gone)
        if not dry:
            session.execute(delete(MembershipRow).where(MembershipRow.run_id.in_(gone)))
            session.execute(delete(OutcomeRow).where(of_gone))
            session.execute(delete(RunRow).where(RunRow.id.in_(gone)))
    with store._reading() as session:  # again, because another process may have saved the same content meanwhile
        files -= files_of(session, ~of_gone)
    paths = [path for path in map(store.artifacts.path, sorted(files)) if path.is_file()]
    nbytes = sum(path.stat().st_size for path in paths)
    for path in () if dry else paths:  # after the rows that named them: an interruption leaves files that nothing names
        path.unlink(missing_ok=True)
    return Pruned(len(gone), count, len(paths), nbytes, len(kept_ids))
