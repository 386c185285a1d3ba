"""Feature networks, named by the hash of their weights, and torch-fidelity's files in PyTorch's cache.

Weights that torch-fidelity would download are read from the download cache; nothing is downloaded here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import BadCheckpoint, Infrastructure

DIGITS = 12
OURS = "cachemark"  # family of the extractors that this package trains


def toolkit() -> Any:
    """Return the module ``torch_fidelity``. Raises Infrastructure if it cannot be imported."""
    try:
        import torch_fidelity.registry
    except ImportError as error:
        raise Infrastructure(f"torch-fidelity, which computes FID, cannot be imported: {error}.",
                             remedy="Install it with `pip install 'cachemark[quality]'`.") from error
    return torch_fidelity


def extractor_name(sha256: str, family: str = OURS) -> str:
    """Return the name of the extractor of a family whose weights have this SHA-256 (hex digits)."""
    return f"{family}-{sha256[:DIGITS]}"


@dataclass(frozen=True)
class Extractor:
    """A feature network. Raises Infrastructure without torch-fidelity.

    ``load`` builds the network from the weights with this SHA-256, in evaluation mode. Called with bytes (B, 3, H, W), RGB, the network
    returns features (B, F), for FID, KID, precision and recall, and class logits (B, C), for the Inception score; if ``spatial``, also
    features (B, S) of an earlier layer by position, for sFID. ``batch``: images per forward pass.
    """

    sha256: str
    load: Callable[[], nn.Module]
    family: str = OURS
    spatial: bool = False
    batch: int = 64

    def __post_init__(self) -> None:
        toolkit()

    @property
    def name(self) -> str:
        return extractor_name(self.sha256, self.family)


def cached(address: str) -> Path:
    """Return the path in PyTorch's download cache of the file from this address, present or not."""
    return Path(torch.hub.get_dir()) / "checkpoints" / address.rsplit("/", 1)[1]


def download(address: str, path: str | Path = "") -> str:
    """Return the command that downloads a file to ``path``, or to where :func:`cached` looks for it."""
    to, home = Path(path) if str(path) else cached(address), Path.home()  # "~" for it: a case has the same identity for every user
    return f"curl -L --create-dirs -o {f'~/{to.relative_to(home)}' if to.is_relative_to(home) else to} {address}"


def tensors(path: Path, address: str) -> dict[str, Tensor]:
    """Return the tensors of a file by name, without running code in it. Raises BadCheckpoint."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # bytes of any origin: the reader may fail in any way
        # PyTorch's own message advises turning the protection off, so it is not passed on.
        raise BadCheckpoint(f"{str(path)!r} is not a weights file, or a damaged one: {type(error).__name__} while reading it.",
                            remedy=f"Fetch it again from {address}.") from error
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise BadCheckpoint(f"{str(path)!r} contains no tensors by name.", remedy=f"Use the file of {address}.")
    return dict(content)
