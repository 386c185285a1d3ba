"""LPIPS against the full cache's image at the same seed (Zhang et al., CVPR 2018), by torch-fidelity.

The network is VGG16 with the authors' linear layers. Its two files are read from PyTorch's download cache; nothing is downloaded.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import BadCheckpoint, Unsupported
from .base import ImageBatch, ImageMetric, MetricContext

if TYPE_CHECKING:
    from torch import Tensor

VGG16 = "https://download.pytorch.org/models/vgg16-397923af.pth"
CHUNK = 16  # pairs per forward pass


class PerceptualDistance(ImageMetric):
    """LPIPS with VGG16 and the authors' linear layers."""

    meaning = "Perceptual distance to the full cache's image at the same seed, by VGG16; if its weights are available."
    name = "lpips"
    title = "LPIPS"
    better = "lower"
    kind = "fidelity"
    within = (0.0, math.inf)
    deterministic = True
    paired = True
    plan_name = "lpips"

    @classmethod
    def identity(cls, setting: MetricContext) -> dict[str, str]:
        from ..models.checkpoints import sha256
        from .compute.extractor import DIGITS

        return {"weights": "/".join(sha256(path)[:DIGITS] for path in files())}

    def measure(self, batch: ImageBatch) -> Tensor:
        """Return distances of images of at least 32 pixels a side."""
        import torch

        network = self.setting.once("lpips", self._network)
        images, reference = ((part.float().clamp(-1, 1) + 1) * 127.5 for part in (batch.images, batch.reference))
        with torch.inference_mode():
            return torch.cat([network(*pair).flatten() for pair in zip(images.split(CHUNK), reference.split(CHUNK), strict=True)])

    def _network(self) -> Any:
        """Load the network. Raises Unsupported for missing files, BadCheckpoint for wrong ones."""
        from .compute.extractor import tensors

        for path, address in files().items():
            tensors(path, address)  # checks them; torch-fidelity reads them differently
        from torch_fidelity.sample_similarity_lpips import SampleSimilarityLPIPS

        try:
            return SampleSimilarityLPIPS("lpips-vgg16").to(self.setting.device)
        except RuntimeError as error:  # of load_state_dict: names or shapes
            raise BadCheckpoint(f"A weights file of LPIPS does not fit: {' '.join(str(error).split())[:300]}.",
                                remedy="Delete both and fetch them again.") from error


def files() -> dict[Path, str]:
    """Return the two files with their addresses. Raises Unsupported, with the command to get it, if one is missing."""
    from .compute.extractor import cached, toolkit

    toolkit()
    from torch_fidelity.sample_similarity_lpips import URL_VGG16_LPIPS  # the linear layers

    paths = {cached(address): address for address in (VGG16, str(URL_VGG16_LPIPS))}
    for path, address in paths.items():
        if not path.is_file():
            home = Path.home()  # "~" for it, so that a case has the same identity for every user
            where = f"~/{path.relative_to(home)}" if path.is_relative_to(home) else path
            raise Unsupported(f"not measured: needs {path.name}, get it with: curl -L --create-dirs -o {where} {address}")
    return paths
