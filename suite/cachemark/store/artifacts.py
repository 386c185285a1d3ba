"""Files next to the database, named by the hash of their content: token ids, latents, grids.

A server's artifacts are in a shared folder that the environment variable ``CACHEMARK_ARTIFACTS`` names, by database. It is never created
here: a machine without the mounted share fails instead of writing elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from ..core.errors import BadStore
from ..core.files import replacing
from .database import guard

VARIABLE = "CACHEMARK_ARTIFACTS"
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
            self.root.mkdir(exist_ok=True)  # without the folders above it: a lost mount is an error
            if not path.is_file() or path.read_bytes() != data:
                _write(path, data)
                for folder in (path.parent, self.root, self.root.parent):
                    _sync_folder(folder)
        return file

    def copy(self, source: Artifacts, files: Sequence[str]) -> None:
        """Copy the missing ones of ``files`` durably from another folder, each checked against its name."""
        missing = [file for file in files if not self.path(file).is_file()]
        for file in missing:
            data = source.read(file)
            with guard(str(self.root)):
                self.root.mkdir(exist_ok=True)
                _write(self.root / file, data)
        with guard(str(self.root)):
            for folder in {(self.root / file).parent for file in missing} | ({self.root, self.root.parent} if missing else set()):
                _sync_folder(folder)

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


def _write(path: Path, data: bytes) -> None:
    """Write a file durably, whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    if not _written_unnamed(path, data):
        with replacing(path) as part:
            part.write_bytes(data)


def _written_unnamed(path: Path, data: bytes) -> bool:
    """Write a new file that has no name until it is whole, so that a kill leaves no part of it.

    False if the file system has no such files, or a file is there already. Raises OSError, such as for a full disk."""
    try:
        handle = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)
    except (OSError, AttributeError):  # only Linux has the flag
        return False
    with open(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(handle)
        try:
            os.link(f"/proc/self/fd/{handle}", path, src_dir_fd=handle)  # with a folder, links are followed; an absolute path ignores it
        except OSError:
            return False
    return True


def _sync_folder(folder: Path) -> None:
    """Flush a folder: a new file is safe only when its name is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def artifacts_of_server(database: str, *, read_only: bool) -> Artifacts:
    """Return the artifacts of a database on a server: ``$CACHEMARK_ARTIFACTS/<database>.artifacts``.

    Raises BadStore if the folder of the variable does not exist, unless the store is only read: then its artifacts are missing.
    """
    named = os.environ.get(VARIABLE, "")
    if not read_only and not (named and Path(named).is_dir()):
        problem = f"{VARIABLE} is {named!r}, which is not a folder" if named else f"{VARIABLE} is not set"
        raise BadStore(f"A store on a server needs a folder for artifacts: {problem}.",
                       remedy=f"Create a folder on a share that every machine mounts, and set {VARIABLE} to it.")
    shared = Path(named).absolute() if named else Path(f"${VARIABLE}")  # without it, messages name the variable to set
    return Artifacts(shared / f"{quote(database, safe='')}.artifacts")
