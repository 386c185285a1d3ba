"""Published checkpoints of the catalogue and their sources, without torch or network access.

The facts are in ``data/publications.json``; unknown facts are null.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ..core.errors import UnknownName, unknown

KEYS = ("weights", "decoder_weights", "tokenizer", "text_encoder")  # the last two are next to the weights
HUB = "https://huggingface.co/"


@dataclass(frozen=True)
class Origin:
    """Source of files: a Hugging Face repository ``name``, or an ``address`` for manual download.

    ``license`` and ``gated`` (terms to accept) are null if unknown.
    """

    name: str
    address: str
    license: str | None = None
    gated: bool | None = None

    @property
    def on_hub(self) -> bool:
        """True if the files can be fetched by a program."""
        return self.address.startswith(HUB)


@dataclass(frozen=True)
class Publication:
    """Files that a ``model`` needs under one ``key`` of a plan.

    ``files`` are patterns, ``path`` is relative to ``folder``. ``about_mib``: published size in MiB; ``tensors_mib``: size
    of the tensors that the model needs, where that is not known (a file may hold more); ``steps`` describe a manual download.
    """

    model: str
    key: str
    origin: Origin
    folder: str
    path: str
    files: tuple[str, ...]
    about_mib: int | None = None
    tensors_mib: int | None = None
    steps: tuple[str, ...] = ()

    def located(self, root: str | Path) -> Path:
        """Return the path below the folder of all downloads."""
        return Path(root) / self.folder / self.path

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, "key": self.key, "source": self.origin.address, "files": list(self.files), "about_mib": self.about_mib,
                "tensors_mib": self.tensors_mib,
                "license": self.origin.license, "gated": self.origin.gated, "by_hand": list(self.steps)}


@functools.cache
def publications() -> tuple[Publication, ...]:
    """Return all publications, ordered by model."""
    data = json.loads((resources.files("cachemark") / "data" / "publications.json").read_text(encoding="utf-8"))
    origins = {name: Origin(name, **facts) for name, facts in data["origins"].items()}
    files = []
    for entry in data["files"]:
        origin, path = origins[entry["origin"]], entry["path"]
        folder = entry.get("folder", origin.name.rpartition("/")[2])
        files += [Publication(model, entry["key"], origin, folder, path, tuple(entry.get("files", (path,))), entry.get("about_mib"),
                              entry.get("tensors_mib"), tuple(entry.get("steps", ()))) for model in entry["models"]]
    return tuple(sorted(files, key=lambda file: (file.model, KEYS.index(file.key))))


def of_model(model: str) -> tuple[Publication, ...]:
    """Return the publications of a model. Raises UnknownName."""
    result = tuple(item for item in publications() if item.model == model)
    if not result and model.startswith("tiny-"):
        raise UnknownName(f"{model} is bundled with its weights.", remedy="There is nothing to fetch.")
    if not result:
        raise unknown("published model", model, {item.model for item in publications()})
    return result
