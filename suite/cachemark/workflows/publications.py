"""Sources of the weights of published models: addresses, files, sizes, licences. Nothing here asks a network or imports torch.

The facts stand in ``data/publications.json``; what nobody has published or what was not read is null there, never a guess. What a source
itself says of its files, sizes and SHA-256, is noted beside them when they are fetched (:data:`NOTES`).
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
    """A source of files: the ``name`` of a repository on Hugging Face, or an ``address`` to which a person must go. ``licence`` and
    ``gated`` are null where they are not known; ``gated`` files are given to those who agreed to terms."""

    name: str
    address: str
    licence: str | None = None
    gated: bool | None = None

    @property
    def on_hub(self) -> bool:
        """True where a program can fetch the files."""
        return self.address.startswith(HUB)


@dataclass(frozen=True)
class Publication:
    """The files that one ``model`` needs under one key of a plan: ``files`` of an origin, as patterns, and the ``path`` to name in the
    plan, below ``folder``. ``nbytes`` and ``sha256`` (by file) are those that were published, ``about_mib`` a published size in whole MiB;
    ``steps`` tell a person what to do where no program can fetch them."""

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
        """The place of the file or folder below the folder that everything was fetched to."""
        return Path(root) / self.folder / self.path

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, "key": self.key, "source": self.origin.address, "files": list(self.files), "bytes": self.nbytes,
                "about_mib": self.about_mib, "sha256": dict(self.sha256) if self.sha256 else None, "licence": self.origin.licence,
                "gated": self.origin.gated, "by_hand": list(self.steps)}


@functools.cache
def publications() -> tuple[Publication, ...]:
    """Everything that is known, model by model."""
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
    """The publications of a model. Raises UnknownName for a model that nobody has published, the nearest name first."""
    result = tuple(item for item in publications() if item.model == model)
    if not result:
        raise unknown("published model", model, {item.model for item in publications()})
    return result


@dataclass(frozen=True)
class Noted:
    """A statement of a source about one of its files, when it was fetched."""

    nbytes: int
    sha256: str = ""


def notes(folder: Path) -> dict[str, Noted]:
    """The statements of this folder's source about its files; none where they were not fetched by this package."""
    if not os.path.lexists(folder / NOTES):
        return {}
    try:
        text = read_json(folder / NOTES)["files"]
        return {str(name): Noted(int(of["bytes"]), str(of.get("sha256") or "")) for name, of in text.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadCheckpoint(f"{str(folder / NOTES)!r} cannot be read: it holds no sizes by file.",
                            remedy="Delete it; `cachemark weights fetch` writes it again.") from error


def noted_of(file: Path) -> Noted | None:
    """The statement of the source about a file: in its own folder or in one above it, to which a repository was fetched."""
    for folder in list(file.parents)[:3]:
        if result := notes(folder).get(file.relative_to(folder).as_posix()):
            return result
    return None
