"""Weights files of other projects in PyTorch's download cache: their paths and tensors. Nothing is downloaded here."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..core.errors import BadCheckpoint


def cached(address: str) -> Path:
    """Path in PyTorch's download cache of the file from this address, present or not."""
    return Path(torch.hub.get_dir()) / "checkpoints" / address.rsplit("/", 1)[1]


def tensors(path: Path, address: str) -> dict[str, Tensor]:
    """The tensors of a file by name; nothing in it is executed. Raises BadCheckpoint, which names the address of the right file."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # bytes of any origin: the reader may fail in any way
        # PyTorch's own message advises turning the protection off, so it is not passed on.
        raise BadCheckpoint(f"{str(path)!r} is no weights file, or a damaged one: {type(error).__name__} while reading it.",
                            remedy=f"Fetch it again from {address}.") from error
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise BadCheckpoint(f"{str(path)!r} holds no tensors by name.", remedy=f"Give the file of {address}.")
    return dict(content)
