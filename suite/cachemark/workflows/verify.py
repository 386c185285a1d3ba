"""Verification of published weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..core.errors import Unsupported
from ..models import checkpoints
from ..models.protocol import Request
from ..models.publications import of_model
from ..models.registry import MODELS
from ..models.weights import packaged
from .weights import FOLDER


@dataclass(frozen=True)
class Verified:
    """Weights that a model loads, with their SHA-256; of several files, one of all names and digests."""

    key: str
    path: str
    sha256: str


def verify(model: str, *, weights: str = "", decoder_weights: str = "", folder: str | Path = FOLDER) -> list[Verified]:
    """Check that a model loads its weights, and return their SHA-256.

    If none are named, those below ``folder`` are checked. Raises BadCheckpoint with what does not fit, UnknownName, and Unsupported for a
    model without published weights.
    """
    entry = MODELS.get(model)
    if not entry.files:
        bundled = packaged(f"{model}.safetensors").is_file()
        raise Unsupported(f"The weights of {model} {'come with cachemark' if bundled else 'are published nowhere'}.",
                          remedy="Name a model of `cachemark weights list`.")
    request = Request.of(model, weights, decoder_weights)
    if request == Request():
        files = {file.key: str(file.located(folder)) for file in of_model(model)}
        request = Request(weights=files.get("weights", ""), decoder_weights=files.get("decoder_weights", ""))
    entry.for_request(request).identity(request)
    return [Verified(key, path, checkpoints.sha256(path)) for key in ("weights", "decoder_weights") if (path := getattr(request, key))]
