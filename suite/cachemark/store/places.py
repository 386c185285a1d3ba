"""Location of a server's artifacts: a folder that every machine can reach, stored in the database.

The first writer sets the folder. A mark file in it identifies the store, so that a machine without the mounted share fails instead of
writing elsewhere.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, delete
from sqlalchemy.orm import Session

from ..core.errors import BadStore
from .artifacts import Artifacts
from .rows import insert_once
from .schema import SettingRow

VARIABLE = "CACHEMARK_ARTIFACTS"
MARK = ".cachemark-store"
_SETTING = "artifacts"


def of_server(engine: Engine, where: str, requested: str | Path | None, *, read_only: bool) -> Artifacts:
    """Return the artifacts of a store on a server, in the given folder, ``CACHEMARK_ARTIFACTS`` or the stored one.

    A reader gets that folder unchecked. A writer stores the first folder; later ones must be the same folder under another path.
    """
    named = requested or os.environ.get(VARIABLE) or None
    folder = None if named is None else _folder(str(named))
    with Session(engine) as session:
        noted = _noted(session)
    if read_only:
        return Artifacts(folder or (Path(noted["folder"]) if noted else Path(f"{engine.url.database}.artifacts")))
    if noted is None:
        if folder is None:
            raise BadStore(f"{where} has no place for artifacts: a server keeps rows, and tokens and images are files.",
                           remedy=f"Name a folder that every machine sees: cachemark db init --artifacts FOLDER, or set {VARIABLE}. "
                           "The store remembers it.")
        noted = _note(engine, folder)
    place = folder or Path(noted["folder"])
    _require(place, noted, where)
    return Artifacts(place)


def move(engine: Engine, where: str, requested: str | Path) -> Path:
    """Store that the artifacts were moved to another folder, with their mark file, and return it."""
    folder = _folder(str(requested))
    with Session(engine) as session, session.begin():
        noted = _noted(session)
        if noted is not None:
            _require(folder, noted, where)
            session.execute(delete(SettingRow).filter_by(name=_SETTING))
            session.add(SettingRow(name=_SETTING, value=json.dumps({**noted, "folder": str(folder)})))
    return folder


def _folder(named: str) -> Path:
    if "://" in named:
        raise BadStore(f"{named!r} is no folder.", remedy="Mount it, and name the folder in which every machine sees it.")
    return Path(named).absolute()


def _noted(session: Session) -> dict[str, Any] | None:
    """Return the setting, or None if it is missing or malformed."""
    row = session.get(SettingRow, _SETTING)
    try:
        noted = json.loads(row.value) if row else None
        return {"folder": str(noted["folder"]), "id": str(noted["id"])} if noted else None
    except (ValueError, KeyError, TypeError):
        return None


def _note(engine: Engine, folder: Path) -> dict[str, Any]:
    """Store and mark a folder unless another process was faster; return the stored setting."""
    mark = folder / MARK
    if mark.is_file():
        raise BadStore(f"{folder} holds the artifacts of another store.", remedy="Name a folder of this store's own.")
    folder.mkdir(parents=True, exist_ok=True)
    made = {"folder": str(folder), "id": secrets.token_hex(8)}
    with Session(engine) as session, session.begin():
        insert_once(session, SettingRow, {"name": _SETTING, "value": json.dumps(made)})
        noted = _noted(session) or made
        if noted == made:
            mark.write_text(made["id"] + "\n")
    return noted


def _require(folder: Path, noted: dict[str, Any], where: str) -> None:
    """Raise BadStore for a folder without the mark of this store."""
    try:
        mark = (folder / MARK).read_text(errors="replace").strip()
    except OSError:
        mark = ""
    if mark != noted["id"]:
        whose = "is that of another store" if mark else f"is not there, or has no file {MARK}"
        raise BadStore(f"The artifacts of {where} lie in {noted['folder']}; {folder} {whose}.",
                       remedy=f"Mount the share. Where this machine sees it under another path, name that in {VARIABLE}; after moving it, "
                       "copy the whole folder and run: cachemark db init --artifacts FOLDER")
