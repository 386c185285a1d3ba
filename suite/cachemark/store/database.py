"""Opens the database under a store, a SQLite file or a PostgreSQL server that several machines share, with the schema of this version."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, OperationalError

from ..core.errors import BadStore, CachemarkError
from ..core.version import __version__
from .faults import BUSY_SECONDS, guard
from .schema import SCHEMA_VERSION, Base

VERSION_TABLE = "cachemark_version"
DEEPEST = 1024  # bytes of a path
LONGEST = 240  # bytes of a name in a path: those of the files beside the database are longer
_LOCK = 0x63616368  # "cach": any number, the same in every process


def file_of(url_or_path: str | Path) -> Path | None:
    """The file that a store is kept in, None where it is on a server."""
    text = str(url_or_path).removeprefix("sqlite:///")
    return None if "://" in text else Path(text)


def writer(engine: Engine) -> Engine:
    """An engine that shares the connections of another, with transactions that take the write lock when they begin."""
    return engine.execution_options(cachemark_write=True)


def open_file(path: Path, *, create: bool, read_only: bool) -> Engine:
    """A SQLite file with our tables. Nothing is written before the file is known to be ours and of this schema."""
    where = str(path)
    with guard(where):
        _check_path(path, create and not read_only)
    mode = "ro" if read_only else "rwc" if create else "rw"
    engine = _sqlite(path, f"mode={mode}")
    try:
        with guard(where):
            if read_only:
                return _read_only(engine, path)
            with engine.connect() as connection:
                version_of(connection, where)
            _write_ahead(engine)
            create_tables(writer(engine), where)
            _try_to_write(engine)
            return engine
    except CachemarkError:
        engine.dispose()
        raise


def open_server(location: str, *, read_only: bool) -> tuple[Engine, str]:
    """A PostgreSQL database and its name for people (without the password), with our tables."""
    url = _server_url(location)
    where = url.render_as_string(hide_password=True)
    engine = create_engine(url, pool_pre_ping=True, execution_options={"postgresql_readonly": True} if read_only else {})
    with guard(where):
        if read_only:
            _check_current(engine, where)
        else:
            create_tables(writer(engine), where)
    return engine, where


def _server_url(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise BadStore(f"{text!r} is not a database URL.", remedy="Write a path, or postgresql+psycopg://user@host/database.") from error
    if url.drivername not in ("postgresql", "postgresql+psycopg"):
        raise BadStore(f"No store can be kept in {url.drivername!r}.",
                       remedy="Write a path for SQLite, or postgresql+psycopg://user@host/database.")
    if importlib.util.find_spec("psycopg") is None:
        raise BadStore("A PostgreSQL store needs the package psycopg, which is not installed.",
                       remedy="Run: pip install 'psycopg[binary]'")
    return url.set(drivername="postgresql+psycopg")


def _check_path(path: Path, create: bool) -> None:
    folder = path.parent
    if "\0" in str(path) or len(os.fsencode(path)) > DEEPEST or any(len(os.fsencode(part)) > LONGEST for part in path.parts):
        raise BadStore("The name of the store cannot be that of a file.", remedy=f"Name another --store, of at most {LONGEST} bytes.")
    if not folder.is_dir():
        what = "is not a directory" if folder.exists() else "does not exist"
        raise BadStore(f"{path} cannot be opened: {folder} {what}.", remedy=f"Run: mkdir -p '{folder}', or name another --store.")
    if path.is_dir():
        raise BadStore(f"{path} is a directory.", remedy=f"Name a file in it, such as {path / 'cachemark.sqlite'}.")
    if not path.exists() and not create:
        near = sorted(p.name for p in folder.iterdir() if p.suffix in (".sqlite", ".db") and p.is_file())
        raise BadStore(f"There is no store {path}.", remedy=f"Databases beside it: {', '.join(near) or 'none'}. `cachemark run` makes one.")


def _sqlite(path: Path, query: str) -> Engine:
    def connect() -> sqlite3.Connection:
        uri = f"file:{quote(str(path.absolute()))}?{query}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool)
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, _record: object) -> None:
    connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")  # a log may hold any bytes
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")  # a saved outcome survives a power cut, at one fsync each


def _on_begin(connection: Connection) -> None:
    """A transaction that will write takes the lock at once: two that both began by reading could never both go on."""
    write = connection.get_execution_options().get("cachemark_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _write_ahead(engine: Engine) -> None:
    """Readers and the writer do not wait for each other. The setting stays in the file.

    SQLite does not wait for a lock while it changes this setting, so we do.
    """
    raw = engine.raw_connection()
    try:
        until = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                raw.cursor().execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.02)
    finally:
        raw.close()


def _try_to_write(engine: Engine) -> None:
    """A file that we may not write fails here, not after hours of work. What is written is taken back."""
    with writer(engine).connect() as connection:
        connection.exec_driver_sql("PRAGMA user_version = 1")
        connection.rollback()


def _read_only(engine: Engine, path: Path) -> Engine:
    """The engine itself, or one that works where SQLite may not make the two files it wants beside a database.

    The second kind takes no locks, so it sees the file as it is now and nothing that another machine adds later.
    """
    try:
        _check_current(engine, str(path))
        return engine
    except OperationalError:
        log = path.with_name(path.name + "-wal")
        if log.exists() and log.stat().st_size:
            raise
        engine.dispose()
        still = _sqlite(path, "mode=ro&immutable=1")
        _check_current(still, str(path))
        return still


def _check_current(engine: Engine, where: str) -> None:
    with engine.connect() as connection:
        if version_of(connection, where) is None:
            raise BadStore(f"{where} is an empty database.", remedy="Measure into it first: cachemark run PLAN")


def version_of(connection: Connection, where: str) -> str | None:
    """Schema version of the database, None where it is empty.

    Raises :class:`BadStore` for tables of another program and for any schema but ours; nothing is written.
    """
    tables = inspect(connection).get_table_names()
    if not tables:
        return None
    version = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}")) if VERSION_TABLE in tables else None
    if version is None:
        raise BadStore(f"{where} is a database of another program (its tables: {', '.join(sorted(tables)[:4])}).",
                       remedy="Name another --store; this one was left as it is.")
    if str(version) != SCHEMA_VERSION:
        raise BadStore(f"{where} has schema {str(version)[:20]!r}; cachemark {__version__} reads and writes schema {SCHEMA_VERSION}.",
                       remedy="Use the version of cachemark that wrote it, or name another --store and measure again.")
    return SCHEMA_VERSION


def create_tables(writer: Engine, where: str) -> None:
    """Create the tables of an empty database, in one transaction. Of several processes at once, one does the work."""
    with writer.connect() as connection:
        if version_of(connection, where):
            return
    with writer.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        if version_of(connection, where):  # another process was faster
            return
        Base.metadata.create_all(connection, checkfirst=False)
        key = f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num)"  # the table that Alembic would keep
        connection.execute(text(f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, {key})"))
        connection.execute(text(f"INSERT INTO {VERSION_TABLE} VALUES (:version)"), {"version": SCHEMA_VERSION})
