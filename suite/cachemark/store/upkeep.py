"""Check, backup and pruning of a store."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sqlalchemy import delete, func, select

from ..core.errors import BadStore
from ..core.files import replacing
from ..core.verdicts import REGRESSED
from .database import check_name, guard, hold_artifacts
from .db import Advanced, Store, files_of, unheard
from .rows import case_of, verdicts_of
from .schema import CaseRow, MalformedRow, MembershipRow, OutcomeRow, RunRow

NIGHTS = 365
DAY = 86_400.0  # seconds


def check(store: Store, advanced: Advanced = unheard, *, quick: bool = False) -> list[str]:
    """Return all problems: damaged pages, broken references, unreadable rows, missing or damaged artifacts.

    ``quick`` looks for artifacts without reading them. ``advanced`` is called with the name of the items, the number read so far, and the
    total.
    """
    problems = []
    if store.file is not None:
        with guard(store.where), _checking(store, store.file) as connection:
            messages = [str(message) for (message,) in connection.execute("PRAGMA quick_check")]
            problems += [message for message in messages if message != "ok"]
            references = connection.execute("PRAGMA foreign_key_check").fetchall()
            problems += [f"{table} {row}: refers to a missing row of {parent}" for table, row, parent, _ in references]
    try:
        edited = _edited_cases(store)
        problems += edited
        files, runs = set[str](), store.runs()
        for done, run in enumerate(runs if not edited else (), 1):  # whose outcomes cannot be read
            files |= {file for outcome in store.outcomes(run.id) for file in outcome.artifacts.values()}
            store.verdicts(run.id)  # refused if they cannot be read
            advanced("runs", done, len(runs))
        for done, file in enumerate(sorted(files), 1):
            problems += _artifact_problems(store, file, quick)
            advanced("artifacts", done, len(files))
    except BadStore as error:
        problems.append(error.message)
    return problems


def _edited_cases(store: Store) -> list[str]:
    """Return a problem for each case that cannot be read, or whose key is not the hash of its content."""
    problems = []
    with store._reading() as session:
        for row in session.scalars(select(CaseRow)):
            try:
                case_of(row)
            except MalformedRow as error:
                problems.append(str(error))
    return problems


@contextmanager
def _checking(store: Store, path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to check a file with. SQLite checks constraints only where it may write."""
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        with closing(sqlite3.connect(path)) as connection:
            yield connection
    else:
        with closing(store._engine.raw_connection()) as pooled:
            yield cast(sqlite3.Connection, pooled.driver_connection)


def _artifact_problems(store: Store, file: str, quick: bool) -> list[str]:
    if not store.artifacts.path(file).is_file():
        return [f"artifact {file}: is missing from {store.artifacts.root}"]
    try:
        if not quick:
            store.artifacts.read(file)
    except BadStore as error:
        return [error.message]
    return []


def leftovers(store: Store, *, delete: bool = False, older: float = DAY) -> list[Path]:
    """Return, or delete, files of killed saves and prunes that no outcome names.

    Files that are not ``older`` than so many seconds may belong to a save that is under way."""
    with (store._writing() if delete else store._reading()) as session:
        if delete:
            hold_artifacts(session)
        old = _unnamed(store, files_of(session), older)
        for path in old if delete else ():
            path.unlink(missing_ok=True)
    return old


def _unnamed(store: Store, named: Collection[str], older: float) -> list[Path]:
    root, until = store.artifacts.root, time.time() - older
    real = root.resolve()
    unnamed = [path for path in (*root.glob("[0-9a-f][0-9a-f]/[0-9a-f]*"), *root.rglob(".*.part"))
               if path.relative_to(root).as_posix() not in named and path.parent.resolve().is_relative_to(real)
               and not path.is_symlink() and path.is_file()]  # a linked folder belongs to somebody else
    return [path for path in unnamed if path.stat().st_mtime < until]


def backup(store: Store, target: Path) -> None:
    """Copy a SQLite database to a new file in one transaction, also while others write to it.

    The copy is whole or absent; a repeated backup deletes what a killed one has left.
    """
    check_name(target)
    if os.path.lexists(target):
        raise BadStore(f"{target} exists already.", remedy="Name a new file.")
    with guard(str(target)), closing(store._engine.raw_connection()) as connection, replacing(target, f"{target.name}.part") as part:
        for left in (part, part.with_name(f"{part.name}-journal")):
            left.unlink(missing_ok=True)
        connection.cursor().execute("VACUUM INTO ?", [str(part)])


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
    with store._reading() if dry else store._writing() as session:  # the rows are gone: an interruption leaves files that nothing names
        if not dry:
            hold_artifacts(session)
        files -= files_of(session, ~of_gone)  # again, because another process may have saved the same content meanwhile
        old = _unnamed(store, files_of(session), DAY)  # among them those of an earlier prune that was killed
        paths = list(dict.fromkeys([*(path for path in map(store.artifacts.path, sorted(files)) if path.is_file()), *old]))
        nbytes = sum(path.stat().st_size for path in paths)
        for path in () if dry else paths:
            path.unlink(missing_ok=True)
    return Pruned(len(gone), count, len(paths), nbytes, len(kept_ids))
