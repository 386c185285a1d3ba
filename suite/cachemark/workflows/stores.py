"""A store where one is asked for (one that is open already, a path, or a URL)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..store.database import file_of
from ..store.db import Store

DEFAULT_STORE = "cachemark.sqlite"


@contextmanager
def reading(store: Store | str | Path) -> Iterator[Store]:
    """The store, which must exist already; reading does not change it. One that is open stays open."""
    if isinstance(store, Store):
        yield store
        return
    with Store.open(store, create=False, read_only=True) as found:
        yield found


@contextmanager
def opened(store: str | Path | None) -> Iterator[Store | None]:
    """The store for reading, or None where there is none yet; a server is taken to be there."""
    if store is None or ((path := file_of(store)) is not None and not path.exists()):
        yield None
        return
    with reading(store) as found:
        yield found
