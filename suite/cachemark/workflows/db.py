"""Check, backup, merge, import and pruning of a store."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import BadStore, Infrastructure
from ..store import upkeep
from ..store.db import Advanced, Store, unheard
from ..store.ingest import Ingested, ingest
from ..store.location import located
from ..store.merge import Merged, merge
from ..store.upkeep import NIGHTS, Pruned, prune
from .session import DEFAULT_STORE, reading


def check_store(store: str | Path = DEFAULT_STORE, advanced: Advanced = unheard, *, quick: bool = False) -> list[str]:
    """Return every problem of a store. Raises BadStore for a file that cannot be opened, or of another schema.

    ``quick`` looks for artifacts without reading them. ``advanced`` is called with the name of the items, the number read so far, and the
    total.
    """
    with reading(store) as source:
        return upkeep.check(source, advanced, quick=quick)


def leftovers_of(store: str | Path = DEFAULT_STORE, *, delete: bool = False) -> list[Path]:
    """Return, or delete, files of killed commands that no outcome names."""
    with Store.open(store, create=False, read_only=not delete) as opened_store:
        return upkeep.leftovers(opened_store, delete=delete)


def backup_store(target: Path, store: str | Path = DEFAULT_STORE) -> None:
    """Copy the database of a SQLite store to a new file; BadStore for a server."""
    path = located(store)
    if not isinstance(path, Path):
        raise BadStore("A store on a server is not backed up by cachemark.", remedy="Use pg_dump.")
    with reading(path) as source:
        upkeep.backup(source, target)


def merge_file(other: Path, store: str | Path = DEFAULT_STORE, advanced: Advanced = unheard) -> Merged:
    """Add the runs of another store, a file with its folder of artifacts; skip runs that are present.

    ``advanced`` is called with the name of the items, the number copied so far, and the total.
    """
    with Store.open(store) as target, reading(other) as source:
        return merge(target, source, advanced)


def prune_store(store: str | Path = DEFAULT_STORE, nights: int = NIGHTS, *, dry: bool = True) -> Pruned:
    """Delete runs before the newest ``nights`` with their artifacts, or count them (``dry``)."""
    with Store.open(store, create=False, read_only=dry) as target:
        return prune(target, nights, dry=dry)


def ingest_file(file: Path, store: str | Path = DEFAULT_STORE) -> Ingested:
    """Import a file of ``pytest --benchmark-json`` as one run."""
    try:
        text = file.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise Infrastructure(f"{file} cannot be read: {error.strerror}.", remedy="Name another file.") from error
    with Store.open(store) as target:
        return ingest(target, text, str(file))
