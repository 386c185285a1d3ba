"""Which weights a model runs with: files of the user, files of the package, or random numbers, and how they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from torch import nn

from . import checkpoints


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
