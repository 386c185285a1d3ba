"""LPIPS, how unlike two images look to a network (Zhang et al., CVPR 2018), where its two weights files are on this machine.

The network is torch-fidelity's, VGG16 with the authors' linear layers. It would fetch its files; here they have to lie where PyTorch
keeps what it has fetched, and nothing is fetched.
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
    """The two files, each with its address. Raises Unsupported, with how to get it, where one is missing."""
    toolkit()
    from torch_fidelity.sample_similarity_lpips import URL_VGG16_LPIPS  # the linear layers

    paths = {cached(address): address for address in (VGG16, str(URL_VGG16_LPIPS))}
    for path, address in paths.items():
        if not path.is_file():
            raise Unsupported(f"not measured: needs {path.name}, get it with: curl -L --create-dirs -o {_of_anybody(path)} {address}")
    return paths


def _of_anybody(path: Path) -> str:
    """A path as every user may type it, without the name of a home folder: what is missing belongs to a case's identity, which is one and
    the same for all."""
    home = os.path.expanduser("~")
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def identity() -> str:
    """The part of a case's identity that the network decides: the first digits of the SHA-256 of both files. Raises what :func:`files`
    raises."""
    return "/".join(sha256(path)[:DIGITS] for path in files())


class Lpips:
    """The network. Raises what :func:`files` raises, and BadCheckpoint for a file that does not hold its weights."""

    def __init__(self, *, device: str = "cpu") -> None:
        for path, address in files().items():
            tensors(path, address)  # torch-fidelity itself reads them in another way
        from torch_fidelity.sample_similarity_lpips import SampleSimilarityLPIPS

        try:
            self._network: Any = SampleSimilarityLPIPS("lpips-vgg16").to(device)
        except RuntimeError as error:  # of load_state_dict: names or shapes
            raise BadCheckpoint(f"A weights file of LPIPS does not fit: {' '.join(str(error).split())[:300]}.",
                                remedy="Delete both and fetch them again.") from error

    @torch.inference_mode()
    def __call__(self, images: Tensor, others: Tensor) -> Tensor:
        """Images (B, 3, H, W) in [−1, 1] (clamped) twice, at least 32 pixels a side, to (B,): 0 is no difference."""
        pairs = zip(_scaled(images).split(CHUNK), _scaled(others).split(CHUNK), strict=True)
        return torch.cat([self._network(one, other).flatten() for one, other in pairs])


def _scaled(images: Tensor) -> Tensor:
    return (images.float().clamp(-1, 1) + 1) * 127.5
