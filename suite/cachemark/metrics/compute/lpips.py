"""LPIPS, the perceptual distance of two images (Zhang et al., CVPR 2018), by torch-fidelity.

The network is VGG16 with the authors' linear layers. Its two files are read from PyTorch's download cache; nothing is downloaded.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.errors import BadCheckpoint, Unsupported
from ...models.checkpoints import sha256
from .extractor import DIGITS, cached, tensors, toolkit

VGG16 = "https://download.pytorch.org/models/vgg16-397923af.pth"
CHUNK = 16  # pairs per forward pass


def files() -> dict[Path, str]:
    """Return the two files with their addresses. Raises Unsupported, with the command to get it, if one is missing."""
    toolkit()
    from torch_fidelity.sample_similarity_lpips import URL_VGG16_LPIPS  # the linear layers

    paths = {cached(address): address for address in (VGG16, str(URL_VGG16_LPIPS))}
    for path, address in paths.items():
        if not path.is_file():
            raise Unsupported(f"not measured: needs {path.name}, get it with: curl -L --create-dirs -o {_without_home(path)} {address}")
    return paths


def _without_home(path: Path) -> str:
    """Return a path with ``~`` for the home folder, so that a case has the same identity for every user."""
    home = os.path.expanduser("~")
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def identity() -> str:
    """Return the hashes of both files. Raises what :func:`files` raises."""
    return "/".join(sha256(path)[:DIGITS] for path in files())


class Lpips:
    """The network. Raises Unsupported for missing files, BadCheckpoint for wrong ones."""

    def __init__(self, *, device: str = "cpu") -> None:
        for path, address in files().items():
            tensors(path, address)  # checks them; torch-fidelity reads them differently
        from torch_fidelity.sample_similarity_lpips import SampleSimilarityLPIPS

        try:
            self._network: Any = SampleSimilarityLPIPS("lpips-vgg16").to(device)
        except RuntimeError as error:  # of load_state_dict: names or shapes
            raise BadCheckpoint(f"A weights file of LPIPS does not fit: {' '.join(str(error).split())[:300]}.",
                                remedy="Delete both and fetch them again.") from error

    @torch.inference_mode()
    def __call__(self, images: Tensor, reference: Tensor) -> Tensor:
        """Return distances of images (B, 3, H, W) in [−1, 1] (clamped), at least 32 pixels a side, (B,)."""
        pairs = zip(_scaled(images).split(CHUNK), _scaled(reference).split(CHUNK), strict=True)
        return torch.cat([self._network(*pair).flatten() for pair in pairs])


def _scaled(images: Tensor) -> Tensor:
    return (images.float().clamp(-1, 1) + 1) * 127.5
