"""Errors of databases and file systems as :class:`BadStore` with a remedy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError

from ..core.errors import BadStore, StoreUnavailable
from .schema import MalformedRow

BUSY_SECONDS = 60.0  # to wait for another process's transaction: ours take milliseconds, a stalled disk may take seconds
_RESTORE = "Restore a backup (`cachemark db backup` makes one), or name another --store. `cachemark db check` lists the damage."
_MESSAGES: tuple[tuple[tuple[str, ...], type[BadStore], str, str], ...] = (  # parts of a message, its error, problem and remedy
    (("disk is full", "no space left", "quota exceeded"), StoreUnavailable,
     "The disk is full: nothing of this outcome was saved in {where}.",
     "Free some space, or name a store on another disk with --store, and run again; saved results are kept."),
    (("readonly database", "read-only transaction", "permission denied", "not permitted", "read-only file system"), BadStore,
     "{where} cannot be written.", "Make the file and its directory writable, or name another --store."),
    (("unable to open database file",), BadStore, "{where} cannot be opened or created.",
     "Check the path and the rights of its directory, or name another --store."),
    (("not a database", "malformed"), BadStore, "{where} is not an SQLite database, or a damaged one.", _RESTORE),
    (("no such table", "no such column"), BadStore, "{where} lacks a table or column of its own schema.", _RESTORE),
    (("database is locked",), StoreUnavailable, f"Another process kept {{where}} locked for more than {BUSY_SECONDS:g} s.",
     "End the other process, or give each its own --store and merge later."),
    (("disk i/o error", "input/output error"), StoreUnavailable, "The disk that holds {where} reports an I/O error.",
     "Look at the system's log, and name a --store on another disk."),
)


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
    """Raise BadStore for errors of the database inside the block; broken constraints are bugs and pass."""
    try:
        yield
    except IntegrityError:
        raise
    except MalformedRow as error:
        raise BadStore(f"{where} is damaged: {error}.", remedy=_RESTORE) from error
    except (DBAPIError, sqlite3.DatabaseError, OSError) as error:
        raise bad_store(getattr(error, "orig", None) or error, where) from error
