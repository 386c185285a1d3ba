"""Check, backup, merge, import and pruning of a store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ..core.errors import BadStore, Infrastructure
from ..core.files import is_readable
from ..store import upkeep
from ..store.db import Advanced, Store, unheard
from ..store.ingest import Import, Ingested, save
from ..store.location import located
from ..store.merge import Merged, merge
from ..store.upkeep import NIGHTS, Pruned, prune
from .session import DEFAULT_STORE, reading

LARGEST = 512 << 20  # bytes of a file to import


def check_store(store: str | Path = DEFAULT_STORE, advanced: Advanced = unheard, *, quick: bool = False) -> list[str]:
    """Return every problem of a store.

    Raises BadStore for a file that cannot be opened, or of another schema.

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


def ingest_files(files: Sequence[Path], store: str | Path = DEFAULT_STORE) -> list[tuple[Path, Ingested]]:
    """Import files of benchmark programs, the oldest measurement first, each as one run.

    All are read before one is imported.

    Raises BadResults for a file of another format, and Infrastructure for one that cannot be read."""
    imports = [(path, Import.of(*_content(path))) for path in files]
    with Store.open(store) as target:
        return [(path, save(target, each)) for path, each in sorted(imports, key=lambda pair: pair[1].measured)]


def _content(path: Path) -> tuple[str, str, datetime]:
    """Return text, name and time of an ordinary file of at most ``LARGEST`` bytes."""
    if not is_readable(path) or path.stat().st_size > LARGEST:
        raise Infrastructure(f"{path} cannot be read, or is larger than {LARGEST >> 20} MiB.", remedy="Name an ordinary file.")
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
        return text, str(path), datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError as error:
        raise Infrastructure(f"{path} cannot be read: {error.strerror}.", remedy="Name another file.") from error
