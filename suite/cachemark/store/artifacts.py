"""Files beside the database, named by the hash of their content: token ids, latents, grids."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..core.errors import BadStore
from ..core.files import replacing
from .faults import bad_store

_NAME = re.compile(r"([0-9a-f]{2})/(\1[0-9a-f]{62})(\.[A-Za-z0-9]{1,16})?")
_SUFFIX = re.compile(r"(\.[A-Za-z0-9]{1,16})?")


@dataclass(frozen=True)
class Artifacts:
    """A folder of files ``<first two hex digits>/<SHA-256>.<extension>``. Equal content is kept once."""

    root: Path

    @property
    def parts(self) -> Path:
        """The folder for what is not complete yet, such as the features of some of a case's images."""
        return self.root / "parts"

    def put(self, name: str, data: bytes) -> str:
        """Write ``data`` so that it survives a power cut, and return its file name relative to the root.

        ``name`` is what the artifact is called in its outcome; only its extension matters here.
        """
        suffix = PurePosixPath(name).suffix
        if not _SUFFIX.fullmatch(suffix):
            raise ValueError(f"artifact {name!r} has an unusual extension")
        digest = hashlib.sha256(data).hexdigest()
        file = f"{digest[:2]}/{digest}{suffix}"
        try:
            self._write(self.root / file, data)
        except OSError as error:
            raise bad_store(error, str(self.root)) from error
        return file

    def path(self, file: str) -> Path:
        """The path of the artifact with this relative name (a value of ``Outcome.artifacts``), present or not. A name of any other form is
        refused: it may come from anywhere."""
        if not _NAME.fullmatch(file):
            raise BadStore(f"{file!r} is not a name of an artifact.", remedy="Names look like 'ab/ab12….png' and come from an outcome.")
        return self.root / file

    def read(self, file: str) -> bytes:
        """The bytes, checked against their name."""
        path = self.path(file)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadStore(f"Artifact {file} cannot be read: {error.strerror}.",
                           remedy=f"Copy the folder {self.root} together with the database, or mount it.") from error
        if hashlib.sha256(data).hexdigest() != path.stem:
            raise BadStore(f"Artifact {file} is damaged: its content does not match its name.",
                           remedy="Restore the file from a copy, or measure the case again.")
        return data

    def _write(self, path: Path, data: bytes) -> None:
        if path.is_file() and path.read_bytes() == data:
            return
        with replacing(path) as part:
            part.write_bytes(data)
        for folder in (path.parent, self.root, self.root.parent):
            _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """The name of a new file is safe only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
