"""Care for a store: its schema, its damage, runs of other stores and programs taken in, and old raw values taken out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import Infrastructure
from ..store.damage import Damage
from ..store.database import file_of
from ..store.db import Store
from ..store.ingest import Ingested, ingest
from ..store.merge import Merged, merge
from ..store.prune import Pruned, nights_kept, prune
from ..store.repair import find, repair
from ..store.rescue import damaged_pages, rescue
from .stores import DEFAULT_STORE

PAGES = "pages of"  # in place of a table


@dataclass(frozen=True)
class Repaired:
    """The work of a repair: the number of rows that it set aside by table, the name of the damaged file if a new one had to be made, and
    the damage that is left: to artifacts, which no repair can bring back."""

    rows: Mapping[str, int]
    kept: Path | None
    left: tuple[Damage, ...]


def migrate(store: str | Path = DEFAULT_STORE, artifacts: str | Path | None = None) -> tuple[str, int]:
    """Bring a store to the schema of this version, and note where a server's ``artifacts`` lie; its name and the number of its rows."""
    with Store.open(store, create=file_of(store) is None, artifacts=artifacts) as target:
        if artifacts is not None:
            target.note_artifacts(artifacts)
        return target.where, sum(target.counts().values())


def find_damage(store: str | Path = DEFAULT_STORE) -> list[Damage]:
    """All damage of a store; of a file whose pages are damaged these, for its rows cannot be believed then."""
    path = file_of(store)
    if path is not None and (pages := damaged_pages(path)):
        return [Damage(PAGES, (str(path),), said) for said in pages]
    with Store.open(store, create=False, read_only=True) as source:
        return find(source)


def repair_store(store: str | Path = DEFAULT_STORE) -> Repaired:
    """Set all damage of a store aside. Of a file whose pages are damaged every readable row goes to a new one, and the file is kept."""
    path = file_of(store)
    kept = rescue(path) if path is not None and damaged_pages(path) else None
    with Store.open(store, create=False) as target:
        rows = repair(target)
        return Repaired(rows, kept, tuple(find(target)))


def merge_file(other: Path, store: str | Path = DEFAULT_STORE) -> Merged:
    """Add the runs of another store, a file with its folder of artifacts. A run that is here already is not added again."""
    with Store.open(store) as target, Store.open(other, create=False, read_only=True) as source:
        return merge(target, source)


def prune_store(store: str | Path = DEFAULT_STORE, policy: str = "raw=60", *, dry: bool = True) -> Pruned:
    """Replace raw values of old nights by quantiles and delete their artifacts, or only count them (``dry``)."""
    with Store.open(store, create=False, read_only=dry) as target:
        return prune(target, nights_kept(policy), dry=dry)


def ingest_file(file: Path, store: str | Path = DEFAULT_STORE) -> Ingested:
    """Read a file that ``pytest --benchmark-json`` wrote into the store as one run."""
    try:
        text = file.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise Infrastructure(f"{file} cannot be read: {error.strerror}.", remedy="Name another file.") from error
    with Store.open(store) as target:
        return ingest(target, text, str(file))
