"""The folder of a campaign: everything it found so far, in few and small files, so that it can travel after every call."""

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

FILES, BYTES = 8, 16 * 2**20  # the most that a folder may hold, and of one file
ROOM = BYTES - 2**20  # of the archive of artifacts; what does not fit is left out and counted
LOG = 64 * 2**10  # bytes that are kept of what a stage has printed
STATE, STORE, ARTIFACTS, PRINTED = "campaign.json", "store.sqlite", "artifacts.zip", "campaign.log"


@dataclass
class Record:
    """The state of a stage. ``waiting``; ``cut``: ended by its time, and the next call goes on with it; ``failed``; or ``done``.
    ``seconds`` that it has taken in all calls, the ``last`` of them in the newest; ``said``: the last line that it printed."""

    state: str = "waiting"
    seconds: float = 0.0
    last: float = 0.0
    said: str = ""


@dataclass
class Folder:
    """Results of all calls. ``facts`` of the machine and the code; ``left_out`` artifacts had no room."""

    path: Path
    stages: dict[str, Record] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    left_out: int = 0

    @classmethod
    def open(cls, path: Path, earlier: Path | None = None) -> Folder:
        """A folder, made where there is none. One that holds no campaign begins as a copy of the ``earlier`` one."""
        path.mkdir(parents=True, exist_ok=True)
        if earlier is not None and not (path / STATE).exists():
            for file in (file for file in earlier.iterdir() if file.is_file()):
                shutil.copyfile(file, path / file.name)  # without its mode: what has travelled may be read-only
        if not (path / STATE).exists():
            return cls(path)
        held = json.loads((path / STATE).read_text(encoding="utf-8"))
        return cls(path, {name: Record(**record) for name, record in held["stages"].items()}, held["facts"], held["left_out"])

    def of(self, stage: str) -> Record:
        """The record of a stage, to be changed."""
        return self.stages.setdefault(stage, Record())

    def save(self) -> None:
        """Write the states down."""
        held = {"facts": self.facts, "stages": {name: asdict(record) for name, record in self.stages.items()}, "left_out": self.left_out}
        replace(self.path / STATE, json.dumps(held, indent=1) + "\n")

    def write(self, name: str, found: Any) -> None:
        """Write the findings of a stage as JSON."""
        replace(self.path / name, json.dumps(found, indent=1, default=str) + "\n")

    def read(self, name: str) -> Any:
        """What :meth:`write` has written, or an empty dict."""
        file = self.path / name
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    def log(self, stage: str, printed: bytes) -> None:
        """Keep the end of what a stage has printed."""
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
        """Take over what the working copy holds now, also while it is written to."""
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
    """Hold the folder to what can travel. Raises RuntimeError with the file that is too large, or the number of files."""
    yield
    files = [file for file in folder.path.iterdir() if file.is_file()]
    large = [file.name for file in files if file.stat().st_size > BYTES]
    if len(files) > FILES or large:
        raise RuntimeError(f"{folder.path} holds {len(files)} files ({FILES} may travel), too large: {', '.join(large) or 'none'}")
