"""New stores and migrated ones have exactly the declared tables, and the constraints refuse what Python refuses."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from store_examples import begin, failed, ok

import cachemark.store.database as engine_module
from cachemark.core.errors import BadStore
from cachemark.core.result import STORED, Status
from cachemark.store.db import Store
from cachemark.store.schema import SCHEMA_VERSION, Base

SCHEMA_2 = Path(__file__).parents[1] / "gate" / "data" / "store-0002.sql"
NEXT = f"{int(SCHEMA_VERSION) + 1:04d}"

SECOND = """
import sqlalchemy as sa
from alembic import op
revision, down_revision, branch_labels, depends_on = "{next}", "{now}", None, None

def upgrade():
    op.add_column("run", sa.Column("note", sa.Text))
    op.create_table("extra", sa.Column("id", sa.Integer, primary_key=True))
    {more}
"""


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


def ddl(path: Path) -> dict[str, str]:
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'").fetchall()
    connection.close()
    return {name: re.sub(r"\s+", " ", sql).replace("( ", "(").replace(" )", ")") for name, sql in found}


def test_alembic_sees_no_difference(store: Store) -> None:
    with store._engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": engine_module.VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_a_store_of_every_earlier_schema_becomes_what_a_new_one_is(store: Store, path: Path, tmp_path: Path) -> None:
    """Statement by statement, checks included. Schema 0001 lacked four tables."""
    earlier = tmp_path / "earlier.db"
    with closing(sqlite3.connect(earlier)) as connection, connection:
        connection.executescript(SCHEMA_2.read_text())
        connection.executescript("DROP TABLE lease; DROP TABLE condensed; UPDATE cachemark_version SET version_num = '0001'")
    assert {"lease", "condensed", "setting", "set_aside"} == ddl(path).keys() - ddl(earlier).keys()
    with Store.open(earlier) as opened:
        assert len(opened.runs()) == 3
    assert ddl(earlier) == ddl(path)


def test_schema_version_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(engine_module.SCRIPTS))
    assert ScriptDirectory.from_config(config).get_current_head() == SCHEMA_VERSION


def with_second_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    scripts = tmp_path / "100%migrations"
    shutil.copytree(engine_module.SCRIPTS, scripts)
    (scripts / "versions" / "v_next.py").write_text(SECOND.format(more=more, next=NEXT, now=SCHEMA_VERSION))
    monkeypatch.setattr(engine_module, "SCRIPTS", scripts)
    for module in (engine_module,):
        monkeypatch.setattr(module, "SCHEMA_VERSION", NEXT)


def test_older_schema_is_migrated_in_place(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(path) as store:
        store.save(begin(store), ok())
    with_second_version(tmp_path, monkeypatch, "")
    with pytest.raises(BadStore, match=rf"schema {SCHEMA_VERSION}; this version reads {NEXT}.*for writing"):
        Store.open(path, read_only=True)
    with Store.open(path) as store:
        assert store.outcomes(1) == [ok()]
    assert "extra" in ddl(path)
    with Store.open(path, read_only=True) as store:
        assert store.outcomes(1) == [ok()]


def test_migration_that_fails_changes_nothing(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store.open(path).close()
    before = ddl(path)
    with_second_version(tmp_path, monkeypatch, "op.execute('INSERT INTO extra SELECT * FROM nowhere')")
    with pytest.raises(BadStore, match="lacks a table"):
        Store.open(path)
    assert ddl(path) == before
    monkeypatch.undo()
    Store.open(path).close()


@pytest.mark.parametrize("change", [
    "UPDATE outcome SET judged = 0 WHERE status = 'ok'",
    "UPDATE outcome SET n_samples = 0 WHERE status = 'ok'",
    "UPDATE outcome SET n_samples = 1 WHERE status = 'oom'",
    "UPDATE outcome SET log = '' WHERE status = 'oom'",
    "UPDATE outcome SET status = 'fine'",
    "UPDATE outcome SET status = 'oom', n_samples = 0, log = 'x' WHERE status = 'ok'",  # its samples still stand
    "UPDATE outcome SET status = NULL WHERE status = 'ok'",
    "UPDATE outcome SET judged = NULL WHERE status = 'ok'",
    "INSERT INTO sample SELECT 2, metric, status, count, packed FROM sample",  # values for the failed outcome
    "INSERT INTO sample SELECT 2, metric, 'oom', count, packed FROM sample",
    "UPDATE sample SET count = count + 1",
    "UPDATE sample SET packed = x'', count = 0",
    "UPDATE run SET state = 'done'",
    "DELETE FROM \"case\"",
    "DELETE FROM run",
    "INSERT INTO membership (run_id, outcome_id, carried) VALUES (1, 1, 1)",
])
def test_sql_refuses(raw: sqlite3.Connection, change: str) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        raw.execute(change)


def test_sql_accepts_what_is_right(raw: sqlite3.Connection) -> None:
    raw.execute("UPDATE outcome SET judged = 1, log = 'remark' WHERE status = 'ok'")
    raw.execute("UPDATE outcome SET status = 'timeout' WHERE status = 'oom'")
    assert raw.execute("SELECT count(*) FROM outcome WHERE status IN ('ok', 'timeout')").fetchone() == (2,)


def test_columns_to_filter_by_agree_with_the_case(raw: sqlite3.Connection) -> None:
    found = raw.execute("SELECT key, cell, model, method, budget, codec, role, batch, seeds, dtype, engine, device_class FROM \"case\" "
                        "WHERE key = ?", [ok(1).case.key]).fetchone()
    case = ok(1).case
    assert found == (case.key, case.cell, "tiny", "linear", "1/4", "native", "arm", 1, "s64", "float32", "eager", "cpu")


def test_every_status_of_python_is_known_to_sql(store: Store) -> None:
    run = begin(store)
    statuses = [s for s in STORED if s is not Status.OK]
    for status in statuses:
        store.save(run, failed(status=status))
    assert [o.status for o in store.outcomes(run)] == statuses


def test_run_numbers_are_never_used_twice(store: Store, path: Path) -> None:
    begin(store)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM run")
    connection.close()
    assert begin(store) == 2
