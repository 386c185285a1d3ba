"""Files next to the database, named by the hash of their content: token ids, latents, grids.

The artifacts of a server are in a folder that every machine can reach. The first writer sets it. A mark file in it identifies the store,
so that a machine without the mounted share fails instead of writing elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sqlalchemy.orm import Session

from ..core.errors import BadStore
from ..core.files import replacing
from .database import guard
from .rows import insert_once
from .schema import SettingRow

VARIABLE = "CACHEMARK_ARTIFACTS"
MARK = ".cachemark-store"
SETTING = "artifacts"
_SUFFIX = r"(\.[A-Za-z0-9]{1,16})?"
_NAME = re.compile(rf"([0-9a-f]{{2}})/\1[0-9a-f]{{62}}{_SUFFIX}")


@dataclass(frozen=True)
class Artifacts:
    """Folder of files ``<first two hex digits>/<SHA-256>.<extension>``. Equal content is kept once."""

    root: Path

    @property
    def parts(self) -> Path:
        """Folder for incomplete results, such as the features of some of a case's images."""
        return self.root / "parts"

    def put(self, name: str, data: bytes) -> str:
        """Write ``data`` durably with the extension of ``name``; return its path below the root."""
        suffix = PurePosixPath(name).suffix
        if not re.fullmatch(_SUFFIX, suffix):
            raise ValueError(f"artifact {name!r} has an unusual extension")
        digest = hashlib.sha256(data).hexdigest()
        file = f"{digest[:2]}/{digest}{suffix}"
        path = self.root / file
        with guard(str(self.root)):
            if not path.is_file() or path.read_bytes() != data:
                with replacing(path) as part:
                    part.write_bytes(data)
                for folder in (path.parent, self.root, self.root.parent):
                    _sync_folder(folder)
        return file

    def path(self, file: str) -> Path:
        """Return the path of an artifact, present or not. Raises BadStore for any other name."""
        if not _NAME.fullmatch(file):
            raise BadStore(f"{file!r} is not a name of an artifact.", remedy="Names look like 'ab/ab12….png' and come from an outcome.")
        return self.root / file

    def read(self, file: str) -> bytes:
        """Return the content, checked against the name."""
        path = self.path(file)
        try:
            if path.exists() and not path.is_file():
                raise OSError(0, "it is not an ordinary file")
            data = path.read_bytes()
        except OSError as error:
            raise BadStore(f"Artifact {file} cannot be read: {error.strerror}.",
                           remedy=f"Copy the folder {self.root} together with the database, or mount it.") from error
        if hashlib.sha256(data).hexdigest() != path.stem:
            raise BadStore(f"Artifact {file} is damaged: its content does not match its name.",
                           remedy="Restore the file from a copy, or measure the case again.")
        return data


def _sync_folder(folder: Path) -> None:
    """Flush a folder: a new file is safe only when its name is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def artifacts_of_server(session: Session, where: str, requested: str | Path | None, *, read_only: bool) -> Artifacts:
    """Return the artifacts in ``requested``, in ``CACHEMARK_ARTIFACTS`` or in the stored folder.

    The first writer stores the folder. Later writers raise BadStore for a folder without its mark; readers do not check it.
    """
    named = str(requested or os.environ.get(VARIABLE) or "")
    if "://" in named:
        raise BadStore(f"{named!r} is not a folder.", remedy="Mount it, and use a path that exists on every machine.")
    if read_only:
        return Artifacts(Path(named or _stored(session).get("folder", "artifacts")).absolute())
    if not (stored := _stored(session)):
        if not named:
            raise BadStore(f"{where} has no folder for artifacts: a server keeps rows, and tokens and images are files.",
                           remedy=f"Name a folder that every machine sees: cachemark db init --artifacts FOLDER, or set {VARIABLE}. "
                           "The store remembers it.")
        stored = _claim(session, Path(named).absolute())
    folder = Path(named or stored["folder"]).absolute()
    try:
        mark = (folder / MARK).read_text(errors="replace").strip()
    except OSError:
        mark = ""
    if mark != stored["id"]:
        problem = "belongs to another store" if mark else f"does not exist, or has no file {MARK}"
        raise BadStore(f"The artifacts of {where} are in {stored['folder']}; {folder} {problem}.",
                       remedy=f"Mount the share. Where this machine sees it under another path, name that in {VARIABLE}; after moving it, "
                       "copy the whole folder and run: cachemark db init --artifacts FOLDER")
    return Artifacts(folder)


def _stored(session: Session) -> dict[str, str]:
    row = session.get(SettingRow, SETTING)
    return dict(json.loads(row.value)) if row else {}


def _claim(session: Session, folder: Path) -> dict[str, str]:
    """Store and mark the folder unless another process was faster; return the stored folder and mark."""
    own = {"folder": str(folder), "id": secrets.token_hex(8)}
    insert_once(session, SettingRow, {"name": SETTING, "value": json.dumps(own)})
    if (stored := _stored(session)) == own:
        if (folder / MARK).is_file():
            raise BadStore(f"{folder} holds the artifacts of another store.", remedy="Name a folder of this store's own.")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).write_text(own["id"] + "\n")
    return stored


def move_artifacts(session: Session, folder: Path) -> None:
    """Store another folder, to which the artifacts and their mark were moved."""
    row = session.get_one(SettingRow, SETTING)
    row.value = json.dumps({**json.loads(row.value), "folder": str(folder)})
