"""Which weights a model runs with: files of the user, files of the package, or random numbers, and how they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn

from . import checkpoints
from .packed import packed
from .protocol import PublishedFile, Request

M = TypeVar("M", bound=nn.Module)


def packaged(name: str) -> Path:
    """Path of a weights file that the package carries."""
    return Path(str(resources.files("cachemark") / "data" / "weights" / name))


def embedded(request: Request, model: str, coder: str) -> Request:
    """The request with the files that the package carries for this model and its image tokenizer, where it names none."""
    return replace(request, weights=request.weights or str(packaged(f"{model}.safetensors")),
                   decoder_weights=request.decoder_weights or str(packaged(f"{coder}.safetensors")))


def identity(
    path: str | Path, build: Callable[[], nn.Module], seed: int, *, ignore: Sequence[str] = (),
    wrappers: Sequence[str] = checkpoints.WRAPPERS,
) -> str:
    """``random:<seed>`` without a file, else its SHA-256; refuses a file that does not fit, with BadCheckpoint."""
    if not path:
        return f"random:{seed}"
    checkpoints.check(build, path, ignore=ignore, wrappers=wrappers)
    return checkpoints.sha256(path)


def identities(files: Sequence[PublishedFile], request: Request) -> str:
    """The identities of a published model's files, with a slash between them."""
    return "/".join(identity(getattr(request, file.key), file.build, request.seed, ignore=file.ignored, wrappers=file.wrappers)
                    for file in files)


def embedded_identity(
    request: Request, build: Callable[[], nn.Module], check: Callable[[str], None], *, wrappers: Sequence[str] = checkpoints.WRAPPERS
) -> str:
    """The identities of an embedded model's files; ``check`` refuses an image tokenizer that does not fit."""
    check(request.decoder_weights)
    return f"{identity(request.weights, build, request.seed, wrappers=wrappers)}/{checkpoints.sha256(request.decoder_weights)}"


def transformer(make: Callable[[], M], path: str | Path, request: Request, **file: Any) -> M:
    """The network that predicts tokens, ready to run: with the weights at ``path`` (``file`` as for :func:`checkpoints.load`), or with
    random ones, which its ``initialise`` draws. Large layers are packed, unless the engine is the reference one."""
    if path:
        model = checkpoints.load(make, path, dtype=request.dtype, device=request.device, **file)
    else:
        model = cast(Any, make()).initialise(request.seed).to(request.device, request.dtype).eval().requires_grad_(False)
    return model if request.engine == "reference" else packed(model)


def coder(make: Callable[[], M], request: Request, *, ignore: Sequence[str] = ()) -> M:
    """A published image tokenizer. It stays in fp32 whatever the transformer's dtype, as in the authors' scripts."""
    if request.decoder_weights:
        return checkpoints.load(make, request.decoder_weights, dtype=torch.float32, device=request.device, ignore=ignore)
    torch.manual_seed(request.seed)
    return make().to(request.device).eval().requires_grad_(False)
