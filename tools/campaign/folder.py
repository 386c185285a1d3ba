"""The folder of a campaign: all results in few small files, to be copied after every call."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FILES, BYTES = 8, 16 * 2**20  # largest number of files in a folder, and largest size of a file
ROOM = BYTES - 2**20  # of the archive of artifacts; what does not fit is left out and counted
LOG = 64 * 2**10  # stored bytes of a stage's output
STATE, STORE, ARTIFACTS, PRINTED, BEFORE = "campaign.json", "store.sqlite", "artifacts.zip", "campaign.log", "before.json"


@dataclass
class Record:
    """The state of a stage: ``waiting``; ``cut`` (continued by the next call); ``failed``; or ``done``.

    ``seconds``: spent in all calls; ``last``: in the newest call; ``said``: the last line that the stage printed.
    """

    state: str = "waiting"
    seconds: float = 0.0
    last: float = 0.0
    said: str = ""


@dataclass
class Folder:
    """Results of all calls, with ``facts`` about machine and code. ``left_out``: artifacts that did not fit."""

    path: Path
    stages: dict[str, Record] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    left_out: int = 0

    @classmethod
    def open(cls, path: Path, earlier: Path | None = None) -> Folder:
        """Open or create a folder; one without a campaign starts as a copy of the ``earlier`` folder."""
        path.mkdir(parents=True, exist_ok=True)
        if earlier is not None and not (path / STATE).exists():
            for file in (file for file in earlier.iterdir() if file.is_file()):
                shutil.copyfile(file, path / file.name)  # without its mode, since returned files may be read-only
        if not (path / STATE).exists():
            return cls(path)
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        return cls(path, {name: Record(**record) for name, record in state["stages"].items()}, state["facts"], state["left_out"])

    def of(self, stage: str) -> Record:
        """Return the record of a stage, which may be modified."""
        return self.stages.setdefault(stage, Record())

    def save(self) -> None:
        """Write the states down."""
        state = {"facts": self.facts, "stages": {name: asdict(record) for name, record in self.stages.items()}, "left_out": self.left_out}
        replace(self.path / STATE, json.dumps(state, indent=1) + "\n")

    def write(self, name: str, results: Any) -> None:
        """Write the findings of a stage as JSON."""
        replace(self.path / name, json.dumps(results, indent=1, default=str) + "\n")

    def read(self, name: str) -> Any:
        """Return the contents written by :meth:`write`, or an empty dict."""
        file = self.path / name
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    def log(self, stage: str, printed: bytes) -> None:
        """Store the end of a stage's output."""
        with (self.path / PRINTED).open("ab") as file:
            file.write(f"\n== {stage}\n".encode() + printed[-LOG:])

    # -- the store: measured into a working copy elsewhere, since a database in use has more files, and larger ones -----------------
    def unpack(self, work: Path) -> Path:
        """A working copy of the store in another folder."""
        if (self.path / STORE).exists():
            shutil.copyfile(self.path / STORE, work / STORE)
        if (self.path / ARTIFACTS).exists():
            with zipfile.ZipFile(self.path / ARTIFACTS) as packed:
                packed.extractall(work / f"{STORE}.artifacts")
        return work / STORE

    def collect(self, store: Path) -> None:
        """Copy the current working store, which may be in use."""
        if not store.exists():
            return
        part = self.path / f"{STORE}.part"
        part.unlink(missing_ok=True)
        with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(part)) as target:
            source.backup(target)
        os.replace(part, self.path / STORE)
        self._pack(store.with_name(f"{STORE}.artifacts"))

    def _pack(self, root: Path) -> None:
        files = sorted(file for file in root.rglob("*") if file.is_file() and "parts" not in file.relative_to(root).parts)
        part, size, self.left_out = self.path / f"{ARTIFACTS}.part", 0, 0
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as packed:
            for file in sorted(files, key=lambda file: file.stat().st_size):  # small ones first: most are pictures
                if size + file.stat().st_size > ROOM:
                    self.left_out += 1
                    continue
                size += file.stat().st_size
                packed.write(file, file.relative_to(root))
        os.replace(part, self.path / ARTIFACTS)


def replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


@contextmanager
def small(folder: Folder) -> Iterator[None]:
    """Raise RuntimeError if a file, or the number of files, is too large to be copied."""
    yield
    files = [file for file in folder.path.iterdir() if file.is_file()]
    large = [file.name for file in files if file.stat().st_size > BYTES]
    if len(files) > FILES or large:
        raise RuntimeError(f"{folder.path} holds {len(files)} files ({FILES} may travel), too large: {', '.join(large) or 'none'}")
