"""Check and back up a store with the means of its database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import select

from ..core.errors import BadStore
from .database import file_of
from .db import Store
from .faults import guard
from .schema import ArtifactRow


def check(store: Store) -> list[str]:
    """Every problem: pages, constraints and references as SQLite sees them, runs and outcomes that cannot be read, missing artifacts."""
    problems = []
    if (path := file_of(store.where)) is not None:
        with guard(store.where), closing(sqlite3.connect(path)) as connection:  # SQLite checks no constraints on a read-only connection
            messages = [str(message) for (message,) in connection.execute("PRAGMA quick_check")]
            problems += [message for message in messages if message != "ok"]
            references = connection.execute("PRAGMA foreign_key_check").fetchall()
            problems += [f"{table} {row}: refers to a missing row of {parent}" for table, row, parent, _ in references]
    with store._reading() as session:
        files = sorted(set(session.scalars(select(ArtifactRow.file))))
    try:
        for run in store.runs():
            store.outcomes(run.id)
    except BadStore as error:
        problems.append(error.message)
    return problems + [f"artifact {file}: is missing" for file in files if not store.artifacts.path(file).is_file()]


def backup(source: Path, target: Path) -> None:
    """Copy a SQLite store to a new file in one transaction, also while others write to it. Its artifacts are not copied."""
    if target.exists():
        raise BadStore(f"{target} exists already.", remedy="Name a new file.")
    with guard(str(source)), closing(sqlite3.connect(source)) as connection:
        connection.execute("VACUUM INTO ?", [str(target)])
