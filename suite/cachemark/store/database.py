"""Open a store's database, a SQLite file or a PostgreSQL server; its errors become :class:`BadStore`."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session

from ..core.errors import BadStore, StoreUnavailable
from ..core.version import __version__
from .location import FORMS, shown
from .schema import SCHEMA_VERSION, Base, MalformedRow

VERSION_TABLE = "cachemark_version"
LONGEST = 240  # bytes of a file name, as the files next to the database have longer names
NETWORK = re.compile(
    r"(fuse\.)?(nfs\d?|cifs|smb\w*|lustre|gpfs|beegfs\w*|ceph|glusterfs|afs|9p|virtiofs|sshfs|ocfs2|gfs2?|orangefs|pvfs2|panfs|wekafs|"
    r"juicefs|rclone|s3fs|gcsfuse|davfs2?|vboxsf|vmhgfs\w*|prl_fs|quobyte|moosefs|mfs|hdfs)")
"""Types of file systems that several machines may write: their shared memory, and so SQLite's write-ahead log, belongs to one machine."""
_LOCK = 0x63616368  # any number that is equal in every process

logging.getLogger("sqlalchemy.pool").addHandler(logging.NullHandler())  # Ctrl-C while a connection closes prints no traceback

BUSY_SECONDS = 60.0  # to wait for another process's transaction: ours take milliseconds, a stalled disk may take seconds
_RESTORE = "Restore a backup (`cachemark db backup` makes one), or name another --store. `cachemark db check` lists the damage."
_MESSAGES: tuple[tuple[tuple[str, ...], type[BadStore], str, str], ...] = (  # parts of a message, its error, problem and remedy
    (("disk is full", "no space left", "quota exceeded"), StoreUnavailable,
     "The disk is full: this was not saved in {where}.",
     "Free some space, or name a store on another disk with --store, and run again; saved results are kept."),
    (("readonly database", "read-only transaction", "permission denied", "not permitted", "read-only file system"), BadStore,
     "{where} cannot be written.", "Make the file and its directory writable, or name another --store."),
    (("unable to open database file",), BadStore, "{where} cannot be opened or created.",
     "Check the path and the rights of its directory, or name another --store."),
    (("not a database", "malformed"), BadStore, "{where} is not an SQLite database, or a damaged one.", _RESTORE),
    (("no such table", "no such column"), BadStore, "{where} lacks a table or column of its own schema.", _RESTORE),
    (("database is locked",), StoreUnavailable, f"Another process kept {{where}} locked for more than {BUSY_SECONDS:g} s.",
     "End the other process, or give each its own --store and merge later."),
    (("locking protocol",), StoreUnavailable,
     "The file system that holds {where} does not provide the locks that SQLite needs, as some network file systems do not.",
     "Name a --store on a local disk and add it with `cachemark db merge`, or use PostgreSQL; see docs/how-to/shared-disks.md."),
    (("disk i/o error", "input/output error"), StoreUnavailable, "The disk that holds {where} reports an I/O error.",
     "Look at the system's log, and name a --store on another disk."),
)


def writer(engine: Engine) -> Engine:
    """Return an engine on the same connections whose transactions take the write lock when they start."""
    return engine.execution_options(cachemark_write=True)


def open_file(path: Path, *, create: bool, read_only: bool) -> Engine:
    """Open a SQLite file. Nothing is written unless it is empty or a store of this schema."""
    where = str(path)
    with guard(where):
        _check_path(path, create and not read_only)
    engine = _sqlite(path, "mode=ro" if read_only else "mode=rwc" if create else "mode=rw")
    try:
        with guard(where):
            if read_only:
                return _read_only(engine, path)
            create_tables(engine, where)
            _set_journal(engine, "DELETE" if NETWORK.fullmatch(file_system(path)) else "WAL")
            with writer(engine).connect() as connection:  # a read-only file fails here, not after hours of work; nothing is committed
                connection.exec_driver_sql("PRAGMA user_version = 1")
            return engine
    except BadStore:
        engine.dispose()
        raise


def open_server(url: URL, *, read_only: bool) -> tuple[Engine, str]:
    """Open a PostgreSQL database. Return its engine and its name."""
    if url.drivername not in ("postgresql", "postgresql+psycopg"):
        raise BadStore(f"No store can be kept in {url.drivername!r}.", remedy=FORMS)
    if importlib.util.find_spec("psycopg") is None:
        raise BadStore("A PostgreSQL store needs the package psycopg, which is not installed.",
                       remedy="Run: pip install 'psycopg[binary]'")
    where = shown(url)
    engine = create_engine(url.set(drivername="postgresql+psycopg"), pool_pre_ping=True,
                           execution_options={"postgresql_readonly": True} if read_only else {})
    with guard(where):
        if read_only:
            _require_tables(engine, where)
        else:
            create_tables(engine, where)
        with engine.connect() as connection:
            return engine, str(connection.scalar(text("SELECT current_database()")))


def check_name(path: Path) -> None:
    """Raise BadStore for a name that no database can have."""
    if "\0" in str(path) or len(os.fsencode(path.name)) > LONGEST:
        raise BadStore("The name of the store is too long for a file.", remedy=f"Name another --store, of at most {LONGEST} bytes.")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise BadStore(f"The name of the store, {os.fsencode(path)!r}, is not UTF-8.", remedy="Rename the file.") from None


def _check_path(path: Path, create: bool) -> None:
    folder = path.parent
    check_name(path)
    if not folder.is_dir():
        what = "is not a directory" if folder.exists() else "does not exist"
        raise BadStore(f"{path} cannot be opened: {folder} {what}.", remedy=f"Run: mkdir -p '{folder}', or name another --store.")
    if path.is_dir():
        raise BadStore(f"{path} is a directory.", remedy=f"Name a file in it, such as {path / 'cachemark.sqlite'}.")
    if path.exists() and not path.is_file():
        raise BadStore(f"{path} is a pipe or a device.", remedy="Name an ordinary file.")
    if not path.exists() and not create:
        near = sorted(p.name for p in folder.iterdir() if p.suffix in (".sqlite", ".db") and p.is_file())
        raise BadStore(f"There is no store {path}.",
                       remedy=f"Databases in the same folder: {', '.join(near) or 'none'}. `cachemark run` makes one.")


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
    connection.execute("PRAGMA synchronous = FULL")  # a saved outcome survives a power failure, at one fsync each


def _on_begin(connection: Connection) -> None:
    """Lock at the start of a writing transaction, since two that start by reading would block each other."""
    write = connection.get_execution_options().get("cachemark_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def file_system(path: Path) -> str:
    """Return the type of a file's file system, such as ``ext4`` or ``nfs4``; empty if unknown."""
    try:
        device = (path if path.exists() else path.parent).stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    number = f" {os.major(device)}:{os.minor(device)} "
    return next((line.partition(" - ")[2].split(" ")[0] for line in mounts if number in line.partition(" - ")[0]), "")


def _set_journal(engine: Engine, mode: str) -> None:
    """Set SQLite's journal: WAL allows readers during a write, DELETE works for several machines.

    SQLite does not wait for a lock here, so we do."""
    raw = engine.raw_connection()
    try:
        until = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                raw.cursor().execute(f"PRAGMA journal_mode = {mode}")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.02)
    finally:
        raw.close()


def lost_log(path: Path) -> str:
    """Return a hint if a file without runs lacks its log, as a copy during a run; else nothing."""
    log = path.with_name(f"{path.name}-wal")
    with path.open("rb") as file:
        head = file.read(20)
    if head[18:20] != b"\x02\x02" or (log.exists() and log.stat().st_size):  # a reader makes an empty one
        return ""
    return f" If {path.name} was copied while a run wrote to it, its log {log.name} was not copied. Copy a store in use with `db backup`."


def _read_only(engine: Engine, path: Path) -> Engine:
    """Return the engine, or one that works where SQLite may not create files next to the database.

    The latter takes no locks, so it does not see what another machine adds later.
    """
    try:
        _require_tables(engine, str(path))
        return engine
    except OperationalError as error:
        log = path.with_name(path.name + "-wal")
        if log.exists() and log.stat().st_size:
            if "unable to open" not in str(error) and "readonly" not in str(error):
                raise
            raise BadStore(f"{path} has a log ({log.name}) with its newest results, which SQLite reads in a writable folder only.",
                           remedy=f"Copy both files to one: cp '{path}' '{log}' FOLDER") from None
        engine.dispose()
        immutable = _sqlite(path, "mode=ro&immutable=1")
        _require_tables(immutable, str(path))
        return immutable


def hold_artifacts(session: Session) -> None:
    """Keep others from adding or deleting artifacts until a writing transaction ends.

    SQLite's write lock does that already.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK + 1})


def _require_tables(engine: Engine, where: str) -> None:
    with engine.connect() as connection:
        if not _has_tables(connection, where):
            raise BadStore(f"{where} is an empty database.", remedy="Measure into it first: cachemark run PLAN")


def create_tables(engine: Engine, where: str) -> None:
    """Create the tables of an empty database in one transaction, also with several processes at once."""
    with engine.connect() as connection:
        if _has_tables(connection, where):
            return
    with writer(engine).begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        if _has_tables(connection, where):  # another process was faster
            return
        Base.metadata.create_all(connection, checkfirst=False)
        key = f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num)"  # the table that Alembic would keep
        connection.execute(text(f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, {key})"))
        connection.execute(text(f"INSERT INTO {VERSION_TABLE} VALUES (:version)"), {"version": SCHEMA_VERSION})


def _has_tables(connection: Connection, where: str) -> bool:
    """Return whether the database has our tables, or False if it is empty. Raises BadStore for others."""
    tables = inspect(connection).get_table_names()
    if not tables:
        return False
    versions = connection.scalars(text(f"SELECT version_num FROM {VERSION_TABLE}")).all() if VERSION_TABLE in tables else []
    if not versions:
        raise BadStore(f"{where} is a database of another program (its tables: {', '.join(sorted(tables)[:4])}).",
                       remedy="Name another --store; this one was left as it is.")
    if missing := sorted({*Base.metadata.tables} - {*tables}) if versions == [SCHEMA_VERSION] else []:  # a view could be without end
        raise BadStore(f"{where} lacks the table {missing[0]} of its own schema.", remedy=_RESTORE)
    if versions != [SCHEMA_VERSION]:
        found = ", ".join(map(str, versions))[:20]
        raise BadStore(f"{where} has schema {found!r}; cachemark {__version__} reads and writes schema {SCHEMA_VERSION}.",
                       remedy="Use the version of cachemark that wrote it, or name another --store and measure again.")
    return True


# -- errors of drivers and of the file system -------------------------------------------------------------------------------
def bad_store(error: BaseException, where: str) -> BadStore:
    """Return the BadStore for an error of a driver or the file system."""
    text = " ".join(str(error).split()).rstrip(".?!")
    for parts, kind, message, remedy in _MESSAGES:
        if any(part in text.lower() for part in parts):
            return kind(message.format(where=where), remedy=remedy)
    if type(error).__module__.startswith("psycopg") and "OperationalError" in {cls.__name__ for cls in type(error).__mro__}:
        return StoreUnavailable(f"{where} cannot be used: {text}.", remedy="Check address and user, or start the server, and run again.")
    return BadStore(f"{where} cannot be used: {text}.", remedy="Fix that, or name another --store.")


@contextmanager
def guard(where: str) -> Iterator[None]:
    """Raise BadStore for errors of the database inside the block; broken constraints of the tables are bugs and pass."""
    try:
        yield
    except IntegrityError as error:
        if getattr(error.orig, "sqlite_errorcode", 0) != sqlite3.SQLITE_CONSTRAINT_TRIGGER:
            raise
        raise BadStore(f"{where} cannot be changed: a trigger refuses it ({error.orig}).", remedy="Delete the trigger.") from error
    except MalformedRow as error:
        raise BadStore(f"{where} is damaged: {error}.", remedy=_RESTORE) from error
    except UnicodeDecodeError as error:  # a name in the schema, which the driver decodes itself
        raise BadStore(f"{where} is damaged: its schema is not UTF-8.", remedy=_RESTORE) from error
    except (DBAPIError, sqlite3.DatabaseError, OSError) as error:
        raise bad_store(getattr(error, "orig", None) or error, where) from error
