"""LPIPS, how unlike two images look to a network (Zhang et al., CVPR 2018), where its two weights files are on this machine.

The network is torch-fidelity's, VGG16 with the authors' linear layers. It would fetch its files; here they have to lie where PyTorch
keeps what it has fetched, and nothing is fetched.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import BadCheckpoint, Unsupported
from .features import DIGITS, toolkit

VGG16 = "https://download.pytorch.org/models/vgg16-397923af.pth"
CHUNK = 16  # pairs that the network sees at once


def files() -> tuple[Path, Path]:
    """The two files. Raises Unsupported, with how to get it, where one is missing."""
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    found = []
    for address in (VGG16, _linear()):
        path = folder / address.rsplit("/", 1)[1]
        if not path.is_file():
            raise Unsupported(f"not measured: needs {path.name}, get it with: curl -L --create-dirs -o {path} {address}")
        found.append(path)
    return found[0], found[1]


def identity() -> str:
    """What of the network belongs to the identity of a case: the first digits of the SHA-256 of both files. Raises what :func:`files`
    raises."""
    digests = []
    for path in files():
        with path.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest()[:DIGITS])
    return "/".join(digests)


class Lpips:
    """The network. Raises what :func:`files` raises, and BadCheckpoint for a file that does not hold its weights."""

    def __init__(self, *, device: str = "cpu") -> None:
        for path in files():
            _check(path)
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


def _linear() -> str:
    """Where torch-fidelity would fetch the linear layers from."""
    toolkit()
    from torch_fidelity.sample_similarity_lpips import URL_VGG16_LPIPS

    return str(URL_VGG16_LPIPS)


def _check(path: Path) -> None:
    """That the file can be read without running anything: torch-fidelity itself reads it in another way."""
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # bytes of any origin: the reader may fail in any way
        raise BadCheckpoint(f"{str(path)!r} is no weights file, or a damaged one: {type(error).__name__} while reading it.",
                            remedy="Delete it and fetch it again.") from error
    if not isinstance(held, dict) or not all(isinstance(value, Tensor) for value in held.values()):
        raise BadCheckpoint(f"{str(path)!r} holds no tensors by name.", remedy="Delete it and fetch it again.")
