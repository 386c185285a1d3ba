"""Weights that a model runs with: the user's files, bundled files, or random numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import checkpoints
from .layers import packed
from .protocol import PublishedFile, Request
from .tiny.stored import BundledWeights

PIXELS = 2**22  # decoded at a time: 64 images of 256×256


def packaged(name: str) -> Path:
    """Return the path of a bundled weights file."""
    return Path(str(resources.files("cachemark") / "data" / "weights" / name))


_CHECKED: dict[tuple[PublishedFile | BundledWeights[Any], str, str], str] = {}  # identities by file, path and SHA-256


def identity(file: PublishedFile | BundledWeights[Any], request: Request) -> str:
    """Return ``random:<seed>``, or the SHA-256 of the file. Raises BadCheckpoint if it does not fit.

    If the file holds several copies of the weights, the name of the used one follows: ``<SHA-256>#ema``.
    """
    path: str = getattr(request, file.key)
    if not path:
        return f"random:{request.seed}"
    if known := _CHECKED.get((file, path, checkpoints.known_sha256(path))):
        return known
    entry = file.check(path)
    digest = checkpoints.sha256(path)
    result = digest + (f"#{re.sub('[^A-Za-z0-9_.-]', '_', entry)}" if entry else "")
    return _CHECKED.setdefault((file, path, digest), result)


def transformer(file: PublishedFile, request: Request) -> Any:
    """Build the transformer with the request's weights, or with random ones.

    Large layers are packed, except for the reference engine."""
    if request.weights:
        model = file.load(request.weights, dtype=request.dtype, device=request.device)
    else:
        with checkpoints.NoDraws():
            module: Any = file.build()
        model = module.initialise(request.seed).to(request.device, request.dtype).eval().requires_grad_(False)
    return model if request.engine == "reference" else packed(model)


def coder(file: PublishedFile | BundledWeights[Any], request: Request) -> Any:
    """Load an image tokenizer in fp32 whatever the transformer's dtype, as the authors do."""
    if request.decoder_weights:
        return file.load(request.decoder_weights, device=request.device)
    torch.manual_seed(request.seed)
    return file.build().to(request.device).eval().requires_grad_(False)


def in_chunks(decode: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a decoder that runs at most PIXELS pixels at a time.

    The activations of an image decoder take several KiB per pixel: 256 images of 384×384 at once need more memory than their K/V cache.
    """
    pixels = 0

    def chunked(tokens: Tensor) -> Tensor:
        nonlocal pixels
        pixels = pixels or decode(tokens[:1])[0, 0].numel()
        images = [decode(part) for part in tokens.split(max(1, PIXELS // pixels))]
        return images[0] if len(images) == 1 else torch.cat(images)

    return chunked
