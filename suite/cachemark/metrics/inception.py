"""The network behind published FIDs: Inception v3 of 2015 as torch-fidelity has it, from a weights file on this machine.

Left to itself torch-fidelity fetches the file from the network, and reads it in a way that lets it run code. Here it always gets the
tensors of a file that is there, read without running anything.
"""

from __future__ import annotations

import io
from pathlib import Path

import torch
from torch import Tensor, nn

from ..core.errors import BadCheckpoint
from .downloads import sha256, tensors
from .extractor import register, toolkit

FAMILY = "inception-v3-compat"  # torch-fidelity's name of the network
LAYERS = ("2048", "logits_unbiased")  # its features, and the logits without bias from which the Inception score is taken


def inception(path: str | Path) -> str:
    """Register torch-fidelity's ``inception-v3-compat`` with the weights at ``path``, and return the name of the extractor.

    Features are the 2048 of the last pooling, logits the 1008 without bias. Raises BadCheckpoint for a file that does not hold them.
    """
    file = Path(path)
    if not file.is_file():
        raise BadCheckpoint(f"{str(path)!r} is not a file.", remedy=f"Give the path of {source().rsplit('/', 1)[1]}.")
    network = Inception(tensors(file, source()), str(path))
    return register(sha256(file), lambda: network, FAMILY)


def source() -> str:
    """The address from which torch-fidelity downloads the weights."""
    toolkit()
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

    return URL_INCEPTION_V3


class Inception(nn.Module):
    """torch-fidelity's network, from tensors by name. Bytes (B, 3, H, W) to features (B, 2048) and logits (B, 1008), float32."""

    def __init__(self, state: dict[str, Tensor], path: str) -> None:
        super().__init__()
        toolkit()
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

        clean = io.BytesIO()
        torch.save(state, clean)
        clean.seek(0)
        try:
            self.network = FeatureExtractorInceptionV3(FAMILY, list(LAYERS), feature_extractor_weights_path=clean)
        except RuntimeError as error:  # of load_state_dict: names or shapes
            raise BadCheckpoint(f"{path!r} does not fit torch-fidelity's {FAMILY}: {' '.join(str(error).split())[:300]}.",
                                remedy=f"Give the file of {source()}.") from error

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return self.network(images)
