"""Weights that a model runs with: the user's files, bundled files, or random numbers."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import torch

from . import checkpoints
from .layers import packed
from .protocol import PublishedFile, Request
from .tiny.stored import BundledWeights


def packaged(name: str) -> Path:
    """Return the path of a bundled weights file."""
    return Path(str(resources.files("cachemark") / "data" / "weights" / name))


def identity(file: PublishedFile | BundledWeights[Any], request: Request) -> str:
    """Return ``random:<seed>``, or the SHA-256 of the file. Raises BadCheckpoint if it does not fit."""
    path: str = getattr(request, file.key)
    if not path:
        return f"random:{request.seed}"
    file.check(path)
    return checkpoints.sha256(path)


def transformer(file: PublishedFile, request: Request) -> Any:
    """Build the transformer with the request's weights, or with random ones.

    Large layers are packed, except for the reference engine."""
    if request.weights:
        model = file.load(request.weights, dtype=request.dtype, device=request.device)
    else:
        module: Any = file.build()
        model = module.initialise(request.seed).to(request.device, request.dtype).eval().requires_grad_(False)
    return model if request.engine == "reference" else packed(model)


def coder(file: PublishedFile | BundledWeights[Any], request: Request) -> Any:
    """Load an image tokenizer in fp32 whatever the transformer's dtype, as the authors do."""
    if request.decoder_weights:
        return file.load(request.decoder_weights, device=request.device)
    torch.manual_seed(request.seed)
    return file.build().to(request.device).eval().requires_grad_(False)
