"""Saves what can be read of a damaged SQLite file, row by row, into a new one; the damaged file is kept under another name."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..core.errors import BadStore
from .database import open_file
from .faults import guard
from .pages import faults
from .schema import Base

HALVINGS = 10  # of a range of rows of which the ends are unreadable
AHEAD = 40  # times that the distance is doubled at which a readable row is looked for
LAST = 2**63 - 1
INTERIOR = 5  # first byte of a page that points to others
SIDES = ("", "-wal")  # of the names of the files of a database


def damaged_pages(path: Path) -> list[str]:
    """The damage to the pages of a file that is a database at least by its first bytes; nothing is changed."""
    try:
        open_file(path, create=False, read_only=True).dispose()
    except BadStore:
        if not (os.path.isfile(path) and _has_header(path)):  # which says no of a name that no file can have, too
            raise
        with closing(sqlite3.connect(_address(path, "ro"), uri=True)) as connection:
            try:
                return faults(connection.cursor(), path)
            except sqlite3.DatabaseError as error:
                return [str(error)]
    return []


def rescue(path: Path) -> Path:
    """Put a new file with every readable row in the place of a damaged one, and return the name under which that is kept."""
    kept = next(name for number in range(1, 10_000) if not (name := path.with_name(f"{path.name}.damaged-{number}")).exists())
    fresh, work = (path.with_name(f"{path.name}.{what}") for what in ("rescued", "rescuing"))
    try:
        for side in SIDES:
            if (file := Path(f"{path}{side}")).exists():
                shutil.copy2(file, f"{kept}{side}")
                shutil.copy2(file, f"{work}{side}")
        _pad(work)
        open_file(fresh, create=True, read_only=False).dispose()
        _require_schema(work, fresh, path)
        with guard(str(path)), closing(_connected(work)) as source, closing(_connected(fresh)) as target:
            _copy(source, target)
        for side in ("-wal", "-shm"):
            Path(f"{path}{side}").unlink(missing_ok=True)
        fresh.replace(path)
    finally:
        for leftover in (fresh, work):
            for side in (*SIDES, "-shm"):
                Path(f"{leftover}{side}").unlink(missing_ok=True)
    return kept


def _has_header(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _pad(path: Path) -> None:
    """Give a file that was cut short its length again, with zeros: the database refuses to open it otherwise."""
    with path.open("r+b") as file:
        header = file.read(100)
        size = int.from_bytes(header[16:18], "big") or 65536
        size = 65536 if size == 1 else size
        whole = int.from_bytes(header[28:32], "big") * size
        if whole > path.stat().st_size:
            file.truncate(whole)


def _require_schema(work: Path, fresh: Path, path: Path) -> None:
    """Give a copy whose list of tables is unreadable that of a new file: where this version made it, its tables begin on the same pages."""
    for attempt in (work.read_bytes(), _with_schema_of(fresh.read_bytes(), work.read_bytes())):
        work.write_bytes(attempt)
        with suppress(sqlite3.DatabaseError), closing(_connected(work)) as connection:
            connection.execute("SELECT * FROM sqlite_master").fetchall()
            return
    raise BadStore(f"Nothing of {path} can be read: its list of tables is damaged.", remedy="Restore a copy of it.")


def _with_schema_of(good: bytes, bad: bytes) -> bytes:
    """A database file with the pages of ``good`` that list its tables: the first one behind its header, and those that it points to."""
    size, cells = int.from_bytes(good[16:18], "big"), int.from_bytes(good[103:105], "big")
    pages = []
    if good[100] == INTERIOR:
        starts = [int.from_bytes(good[at : at + 2], "big") for at in range(112, 112 + 2 * cells, 2)]
        pages = [int.from_bytes(good[at : at + 4], "big") for at in (*starts, 108)]
    mended = bytearray(bad)
    mended[100:size] = good[100:size]
    for page in pages:
        mended[(page - 1) * size : page * size] = good[(page - 1) * size : page * size]
    return bytes(mended)


def _address(path: Path, mode: str) -> str:
    return f"file:{quote(str(path.absolute()))}?mode={mode}"


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(_address(path, "rw"), uri=True, isolation_level=None)
    connection.text_factory = bytes  # a text that is none any more is copied as it is
    return connection


def _copy(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """All readable rows of all tables, whatever they refer to: what does not fit is set aside later."""
    target.execute("PRAGMA ignore_check_constraints = ON")
    target.execute("BEGIN IMMEDIATE")
    for table in Base.metadata.sorted_tables:
        names = ", ".join(f'"{column.name}"' for column in table.columns)
        places = ", ".join("CAST(? AS TEXT)" if column.type.python_type is str else "?" for column in table.columns)
        insert = f'INSERT OR IGNORE INTO "{table.name}" (rowid, {names}) VALUES (?, {places})'
        _Reading(source, f'SELECT rowid, {names} FROM "{table.name}"', partial(_put, target, insert)).everything()
    target.execute("COMMIT")


def _put(target: sqlite3.Connection, insert: str, row: tuple[Any, ...]) -> None:
    with suppress(sqlite3.IntegrityError):  # NULL where none may be: nothing that a row could be told from is left
        target.execute(insert, row)


@dataclass
class _Reading:
    """The readable rows of a table, each given to ``put``, some of them twice."""

    source: sqlite3.Connection
    query: str
    put: Callable[[tuple[Any, ...]], None]

    def everything(self) -> None:
        """Up to an unreadable row, then from the next readable one behind it, and what lies between."""
        low = 0
        while True:
            last, whole = self._span(low, LAST, "ASC")
            if whole:
                return
            behind = self._behind(last)
            self._gap(last, behind or last + 2**HALVINGS, HALVINGS)
            if behind is None:
                return
            low = behind - 1

    def _span(self, low: int, high: int, order: str) -> tuple[int, bool]:
        """Read the rows between two numbers in this order; the number of the last one that could be read, and whether that is all."""
        last = low if order == "ASC" else high
        try:
            for row in self.source.execute(f"{self.query} WHERE rowid > ? AND rowid < ? ORDER BY rowid {order}", (low, high)):
                self.put(row)
                last = int(row[0])
        except sqlite3.DatabaseError:
            return last, False
        return last, True

    def _behind(self, last: int) -> int | None:
        """The number of a readable row behind the unreadable ones that follow ``last``, if one is found."""
        for step in (2**power for power in range(AHEAD)):
            with suppress(sqlite3.DatabaseError):
                row = self.source.execute(f"{self.query} WHERE rowid > ? ORDER BY rowid LIMIT 1", (last + step,)).fetchone()
                return int(row[0]) if row else None
        return None

    def _gap(self, low: int, high: int, halvings: int) -> None:
        """Read what can be read between two rows with unreadable ones between them."""
        first, whole = self._span(low, high, "DESC")
        if whole or not halvings or first - low < 2:
            return
        middle = (low + first) // 2
        for start, end in ((low, middle + 1), (middle, first)):
            last, whole = self._span(start, end, "ASC")
            if not whole:
                self._gap(last, end, halvings - 1)
