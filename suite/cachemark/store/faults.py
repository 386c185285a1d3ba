"""Turns what a database or file system says into a :class:`BadStore` with its remedy."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError

from ..core.errors import BadStore, StoreUnavailable
from .schema import MalformedRow

BUSY_SECONDS = 60.0  # of waiting for another process's transaction: ours take milliseconds, a stalled disk may take seconds
_FULL = ("The disk is full: nothing of this outcome was saved in {where}.",
         "Free some space, or name a store on another disk with --store, and run again; what was saved before is kept.")
_READ_ONLY = ("{where} cannot be written.", "Give this user the right to write the file and its directory, or name another --store.")
_DAMAGED = ("{where} is not an SQLite database, or a damaged one.",
            "Restore a backup (`cachemark db backup` makes one), or name another --store. `cachemark db check` lists the damage.")
_LACKS = "Restore a copy of it, or name another --store."
_AWAY = (
    "connection refused", "no such file or directory", "could not translate host name", "name or service not known", "no route to host",
    "timeout expired", "network is unreachable", "server closed the connection", "connection is lost", "connection is closed",
    "connection reset", "too many clients", "remaining connection slots", "is starting up", "is shutting down", "terminating connection",
)  # what the driver says of a server that does not answer
_SAID: tuple[tuple[str, type[BadStore], str, str], ...] = (
    ("disk is full", StoreUnavailable, *_FULL),
    ("no space left", StoreUnavailable, *_FULL),
    ("readonly database", BadStore, *_READ_ONLY),
    ("read-only transaction", BadStore, *_READ_ONLY),
    ("unable to open database file", BadStore, "{where} cannot be opened or created.",
     "Check the path and the rights of its directory, or name another --store."),
    ("not a database", BadStore, *_DAMAGED),
    ("malformed", BadStore, *_DAMAGED),
    ("database is locked", StoreUnavailable, f"Another process kept {{where}} locked for more than {BUSY_SECONDS:g} s.",
     "End the other process, or give each its own --store and merge later."),
    ("no such table", BadStore, "{where} lacks a table of its own schema.", _LACKS),
    ("no such column", BadStore, "{where} lacks a column of its own schema.", _LACKS),
    ("disk i/o error", StoreUnavailable, "The disk that holds {where} reports an I/O error.",
     "Look at the system's log, and name a --store on another disk."),
    *((words, StoreUnavailable, "{where} cannot be used: {said}.", "Start its server, or wait for it, and run again.") for words in _AWAY),
    ("", BadStore, "{where} cannot be used: {said}.", "Fix that, or name another --store."),
)
_ERRNO: dict[int, tuple[type[BadStore], str, str]] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), (StoreUnavailable, *_FULL)),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), (BadStore, *_READ_ONLY)),
    errno.EIO: (StoreUnavailable, "{where} cannot be used: {said}.", "Look at the system's log, and name a --store on another disk."),
}


def bad_store(error: BaseException, where: str) -> BadStore:
    """The error for ``error``, raised by a driver or the file system while working on the store ``where``."""
    text = " ".join(str(error).split()).rstrip(".?!")
    if isinstance(error, OSError) and error.errno in _ERRNO:
        kind, message, remedy = _ERRNO[error.errno]
    else:
        kind, message, remedy = next(row[1:] for row in _SAID if row[0] in text.lower())
    return kind(message.format(where=where, said=text), remedy=remedy)


@contextmanager
def guard(where: str) -> Iterator[None]:
    """Errors of the database inside the block leave it as :class:`BadStore`; broken constraints, our own bugs, as they are."""
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        raise bad_store(error.orig or error, where) from error
    except MalformedRow as error:
        raise BadStore(f"{where} is damaged: {error}.", remedy=_DAMAGED[1]) from error
    except (sqlite3.DatabaseError, OSError) as error:
        raise bad_store(error, where) from error
