"""Turns what a database or file system says into a :class:`BadStore` with its remedy."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError

from ..core.errors import BadStore

BUSY_SECONDS = 60.0  # of waiting for another process's transaction: ours take milliseconds, a stalled disk may take seconds
_FULL = ("The disk is full: nothing of this outcome was saved in {where}.",
         "Free some space, or name a store on another disk with --store, and run again; what was saved before is kept.")
_READ_ONLY = ("{where} cannot be written.", "Give this user the right to write the file and its directory, or name another --store.")
_DAMAGED = ("{where} is not an SQLite database, or a damaged one.",
            "Name another --store, or restore a copy; the sqlite3 tool's .recover may save what is left.")
_SAID = (
    ("disk is full", *_FULL),
    ("no space left", *_FULL),
    ("readonly database", *_READ_ONLY),
    ("read-only transaction", *_READ_ONLY),
    ("unable to open database file", "{where} cannot be opened or created.",
     "Check the path and the rights of its directory, or name another --store."),
    ("not a database", *_DAMAGED),
    ("malformed", *_DAMAGED),
    ("database is locked", f"Another process kept {{where}} locked for more than {BUSY_SECONDS:g} s.",
     "End the other process, or give each its own --store and merge later."),
    ("no such table", "{where} lacks a table of its own schema.", "Restore a copy of it, or name another --store."),
    ("no such column", "{where} lacks a column of its own schema.", "Restore a copy of it, or name another --store."),
    ("disk i/o error", "The disk that holds {where} reports an I/O error.",
     "Look at the system's log, and name a --store on another disk."),
)
_ERRNO = {errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, errno.EACCES: _READ_ONLY, errno.EPERM: _READ_ONLY, errno.EROFS: _READ_ONLY}


def bad_store(error: BaseException, where: str) -> BadStore:
    """The error for ``error``, raised by a driver or the file system while working on the store ``where``."""
    if isinstance(error, OSError) and error.errno in _ERRNO:
        message, remedy = _ERRNO[error.errno]
        return BadStore(message.format(where=where), remedy=remedy)
    said = " ".join(str(error).split()).rstrip(".?!")
    for words, message, remedy in _SAID:
        if words in said.lower():
            return BadStore(message.format(where=where), remedy=remedy)
    return BadStore(f"{where} cannot be used: {said}.", remedy="Fix that, or name another --store.")


@contextmanager
def guard(where: str) -> Iterator[None]:
    """Errors of the database inside the block leave it as :class:`BadStore`; broken constraints, our own bugs, as they are."""
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        raise bad_store(error.orig or error, where) from error
    except (sqlite3.DatabaseError, OSError) as error:
        raise bad_store(error, where) from error
