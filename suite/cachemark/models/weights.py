"""Which weights a model runs with: files of the user, files of the package, or random numbers, and how they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, cast

from torch import nn

from . import checkpoints
from .packed import packed
from .protocol import Request

M = TypeVar("M", bound=nn.Module)


def packaged(name: str) -> Path:
    """Path of a weights file that the package carries."""
    return Path(str(resources.files("cachemark") / "data" / "weights" / name))


def identity(
    path: str | Path, build: Callable[[], nn.Module], seed: int, *, ignore: Sequence[str] = (),
    wrappers: Sequence[str] = checkpoints.WRAPPERS,
) -> str:
    """``random:<seed>`` without a file, else its SHA-256; refuses a file that does not fit, with BadCheckpoint."""
    if not path:
        return f"random:{seed}"
    checkpoints.check(build, path, ignore=ignore, wrappers=wrappers)
    return checkpoints.sha256(path)


def transformer(make: Callable[[], M], path: str | Path, request: Request, **file: Any) -> M:
    """The network that predicts tokens, ready to run: with the weights at ``path`` (``file`` as for :func:`checkpoints.load`), or with
    random ones, which its ``initialise`` draws. Large layers are packed, unless the engine is the reference one."""
    if path:
        model = checkpoints.load(make, path, dtype=request.dtype, device=request.device, **file)
    else:
        model = cast(Any, make()).initialise(request.seed).to(request.device, request.dtype).eval().requires_grad_(False)
    return model if request.engine == "reference" else packed(model)
