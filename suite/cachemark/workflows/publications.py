"""Sources of published weights: addresses, files, sizes and licenses, without network or torch.

The facts are in ``data/publications.json``; unknown facts are null. Sizes and SHA-256 stated by a source are stored next to fetched files
(:data:`NOTES`).
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ..core.errors import BadCheckpoint, unknown
from ..core.files import read_json

KEYS = ("weights", "decoder_weights", "tokenizer", "text_encoder")  # the last two lie beside the weights
NOTES = ".published.json"  # in the folder of a source: what it says of its files
HUB = "https://huggingface.co/"


@dataclass(frozen=True)
class Origin:
    """Source of files: a Hugging Face repository ``name``, or an ``address`` for manual download.

    ``licence`` and ``gated`` (terms to accept) are null if unknown.
    """

    name: str
    address: str
    licence: str | None = None
    gated: bool | None = None

    @property
    def on_hub(self) -> bool:
        """True if the files can be fetched by a program."""
        return self.address.startswith(HUB)


@dataclass(frozen=True)
class Publication:
    """Files that a ``model`` needs under one ``key`` of a plan.

    ``files`` are patterns, ``path`` is relative to ``folder``. ``nbytes`` and ``sha256`` (by file) are as published, ``about_mib`` a
    published size in MiB; ``steps`` describe a manual download.
    """

    model: str
    key: str
    origin: Origin
    folder: str
    path: str
    files: tuple[str, ...]
    nbytes: int | None = None
    about_mib: int | None = None
    sha256: Mapping[str, str] | None = None
    steps: tuple[str, ...] = ()

    def located(self, root: str | Path) -> Path:
        """Return the path below the folder of all downloads."""
        return Path(root) / self.folder / self.path

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, "key": self.key, "source": self.origin.address, "files": list(self.files), "bytes": self.nbytes,
                "about_mib": self.about_mib, "sha256": dict(self.sha256) if self.sha256 else None, "licence": self.origin.licence,
                "gated": self.origin.gated, "by_hand": list(self.steps)}


@functools.cache
def publications() -> tuple[Publication, ...]:
    """Return all publications, ordered by model."""
    data = json.loads((resources.files("cachemark") / "data" / "publications.json").read_text(encoding="utf-8"))
    origins = {name: Origin(name, **facts) for name, facts in data["origins"].items()}
    files = (file for entry in data["files"] for file in _read(entry, origins))
    return tuple(sorted(files, key=lambda file: (file.model, KEYS.index(file.key))))


def _read(entry: Mapping[str, Any], origins: Mapping[str, Origin]) -> Iterator[Publication]:
    origin = origins[entry["origin"]]
    folder, path = entry.get("folder", origin.name.rpartition("/")[2]), entry["path"]
    for model in entry["models"]:
        yield Publication(model, entry["key"], origin, folder, path, tuple(entry.get("files", (path,))), entry.get("bytes"),
                          entry.get("about_mib"), entry.get("sha256"), tuple(entry.get("steps", ())))


def of_model(model: str) -> tuple[Publication, ...]:
    """Return the publications of a model. Raises UnknownName."""
    result = tuple(item for item in publications() if item.model == model)
    if not result:
        raise unknown("published model", model, {item.model for item in publications()})
    return result


@dataclass(frozen=True)
class Noted:
    """Facts that a source stated about a file when it was fetched."""

    nbytes: int
    sha256: str = ""


def notes(folder: Path) -> dict[str, Noted]:
    """Return the stated facts about the files of a folder; nothing if it was not fetched by this package."""
    if not os.path.lexists(folder / NOTES):
        return {}
    try:
        text = read_json(folder / NOTES)["files"]
        return {str(name): Noted(int(of["bytes"]), str(of.get("sha256") or "")) for name, of in text.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadCheckpoint(f"{str(folder / NOTES)!r} cannot be read: it holds no sizes by file.",
                            remedy="Delete it; `cachemark weights fetch` writes it again.") from error


def noted_of(file: Path) -> Noted | None:
    """Return the stated facts about a file, from its folder or one above it."""
    for folder in list(file.parents)[:3]:
        if result := notes(folder).get(file.relative_to(folder).as_posix()):
            return result
    return None
