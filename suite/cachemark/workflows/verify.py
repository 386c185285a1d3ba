"""Verification of published weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..core.errors import BadCheckpoint, Unsupported
from ..models import checkpoints
from ..models.protocol import Request
from ..models.registry import MODELS
from ..models.weights import packaged
from .weights import FOLDER, Noted, noted_of, of_model

PUBLISHED, UNKNOWN = "as published", "not published"


@dataclass(frozen=True)
class Verified:
    """Weights that a model loads, with their SHA-256. ``published``: whether a source stated it."""

    key: str
    path: str
    sha256: str
    published: str


def verify(model: str, *, weights: str = "", decoder_weights: str = "", folder: str | Path = FOLDER) -> list[Verified]:
    """Check that a model loads its weights, and their published sizes and SHA-256, if known.

    If none are named, those below ``folder`` are checked. Raises BadCheckpoint with what does not fit, UnknownName, and Unsupported for a
    model without published weights.
    """
    entry = MODELS.get(model)
    if not entry.files:
        bundled = packaged(f"{model}.safetensors").is_file()
        raise Unsupported(f"The weights of {model} {'come with cachemark' if bundled else 'are published nowhere'}.",
                          remedy="Name a model of `cachemark weights list`.")
    paths = {"weights": weights, "decoder_weights": decoder_weights}
    if not any(paths.values()):
        paths = {file.key: str(file.located(folder)) for file in of_model(model) if file.key in paths}
    noted = {file: noted_of(file) for path in paths.values() if path for file in checkpoints.parts(path)}
    for file, facts in noted.items():
        if facts and (size := file.stat().st_size) != facts.nbytes:
            raise BadCheckpoint(f"{str(file)!r} has {size} of {facts.nbytes} bytes: its download is not whole.",
                                remedy=f"Delete it and run `cachemark weights fetch {model}` again.")
    entry.identity(Request(weights=paths.get("weights", ""), decoder_weights=paths.get("decoder_weights", "")))
    return [_compared(key, path, noted) for key, path in paths.items() if path]


def _compared(key: str, path: str, noted: dict[Path, Noted | None]) -> Verified:
    """Compare the SHA-256 of weights with the published one. Raises BadCheckpoint if they differ."""
    digests = checkpoints.digests(path)
    published = {file: facts.sha256 for file in digests if (facts := noted[file]) and facts.sha256}
    for file, digest in published.items():
        if digests[file] != digest:
            raise BadCheckpoint(f"{str(file)!r} has the SHA-256 {digests[file]}, not {digest}.",
                                remedy="It was changed or damaged: delete it and fetch it again.")
    return Verified(key, path, checkpoints.combined(digests), PUBLISHED if len(published) == len(digests) else UNKNOWN)
