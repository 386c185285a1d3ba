"""The constraints of the tables refuse what Python refuses."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_examples import begin, failed, ok

from cachemark.core.result import Status
from cachemark.store.db import Store


@pytest.fixture
def raw(store: Store, path: Path) -> Iterator[sqlite3.Connection]:
    """A plain connection to a store with one ok and one failed outcome."""
    run = begin(store)
    store.save(run, ok(1))
    store.save(run, failed(2))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA foreign_keys = ON")
    yield connection
    connection.close()


@pytest.mark.parametrize("change", [
    "UPDATE outcome SET has_judgement = 0 WHERE status = 'ok'",
    "UPDATE outcome SET samples = '{}' WHERE status = 'ok'",
    "UPDATE outcome SET samples = '{\"latency\":[1.0]}' WHERE status = 'oom'",
    "UPDATE outcome SET log = '' WHERE status = 'oom'",
    "UPDATE outcome SET status = 'fine'",
    "UPDATE outcome SET status = 'oom', log = 'x' WHERE status = 'ok'",  # its samples still stand
    "UPDATE outcome SET status = NULL WHERE status = 'ok'",
    "UPDATE outcome SET samples = NULL WHERE status = 'oom'",
    "UPDATE outcome SET has_judgement = NULL WHERE status = 'ok'",
    "UPDATE run SET state = 'done'",
    "DELETE FROM \"case\"",
    "DELETE FROM run",
    "INSERT INTO membership (run_id, outcome_id) VALUES (1, 1)",
])
def test_sql_refuses(raw: sqlite3.Connection, change: str) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        raw.execute(change)


def test_sql_accepts_what_is_right(raw: sqlite3.Connection) -> None:
    raw.execute("UPDATE outcome SET has_judgement = 1, log = 'remark' WHERE status = 'ok'")
    raw.execute("UPDATE outcome SET status = 'timeout' WHERE status = 'oom'")
    assert raw.execute("SELECT count(*) FROM outcome WHERE status IN ('ok', 'timeout')").fetchone() == (2,)


def test_every_status_of_python_is_known_to_sql(store: Store) -> None:
    run = begin(store)
    statuses = [s for s in Status if s is not Status.OK]
    for status in statuses:
        store.save(run, failed(status=status))
    assert [o.status for o in store.outcomes(run)] == statuses


def test_run_numbers_are_never_used_twice(store: Store, path: Path) -> None:
    begin(store)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM run")
    connection.close()
    assert begin(store) == 2
