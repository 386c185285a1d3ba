"""The pages of a SQLite file, looked at before its rows are believed: all there, and each where it belongs.

The database itself reads a file that was cut short or of which a page was overwritten without a word, as long as it does not come to that
page. Looking at all of them takes about a second for :data:`WHOLE` bytes; of a larger file the tables are looked at that say what there is.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import cast

from sqlalchemy import Engine

from ..core.errors import BadStore

WHOLE = 512 * 2**20  # bytes
LISTED = 1000  # findings at most
FIRST = ("cachemark_version", "run", "environment", "case", "trial", "membership", "baseline")  # in a larger file
_OF_ROWS = re.compile(r"(NULL|NUMERIC|TEXT|non-\w+) value in |CHECK constraint failed in ")  # these are named row by row
_sound: dict[Path, object] = {}  # of files that this process has looked at: their sizes and times then


def require_whole(engine: Engine, path: Path) -> None:
    """Raise :class:`BadStore` where pages of a file are missing or damaged."""
    stamp = _stamp(path)
    if _sound.get(path.absolute()) == stamp:
        return
    connection = engine.raw_connection()
    try:
        found = faults(cast(sqlite3.Cursor, connection.cursor()), path)
    finally:
        connection.close()
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        raise BadStore(f"{path} is a damaged SQLite database: {found[0]}{more}.",
                       remedy="Restore a copy of it. `cachemark db repair` saves what can be read and keeps the damaged file.")
    _sound[path.absolute()] = stamp


def faults(cursor: sqlite3.Cursor, path: Path) -> list[str]:
    """The damage to the pages of an open file."""
    count, size = (int(cursor.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "page_size"))
    there = sum(file.stat().st_size for file in (path, _log(path)) if file.exists())
    if there < count * size:
        return [f"it was cut short: {there} of {count * size} bytes are here"]
    asked = [f"({LISTED})"] if there <= WHOLE else [f"('{table}')" for table in FIRST]
    cursor.execute("PRAGMA ignore_check_constraints = ON")
    try:
        said = [str(row[0]) for which in asked for row in cursor.execute(f"PRAGMA quick_check{which}").fetchall()]
    finally:
        cursor.execute("PRAGMA ignore_check_constraints = OFF")
    lines = [" ".join(line.split()) for text in said for line in text.splitlines()]
    return [line for line in lines if line != "ok" and not _OF_ROWS.match(line) and not line.startswith("*** in database")]


def _log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _stamp(path: Path) -> object:
    return [(found.st_size, found.st_mtime_ns, found.st_ino) for file in (path, _log(path)) if file.exists() and (found := file.stat())]
