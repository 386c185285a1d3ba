"""Similarity to the full cache's image at the same seed: PSNR, SSIM and LPIPS.

LPIPS (Zhang et al., CVPR 2018) is computed by torch-fidelity, with VGG16 and the authors' linear layers. Its two files are read from
PyTorch's download cache; nothing is downloaded.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import BadCheckpoint, Unsupported
from .base import FidelityMetric, ImageBatch, MetricContext

if TYPE_CHECKING:
    from torch import Tensor

PSNR_CAP = 60.0  # dB; identical images would give infinity
VGG16 = "https://download.pytorch.org/models/vgg16-397923af.pth"
CHUNK = 16  # pairs per forward pass of LPIPS
WINDOW = 11  # pixels of SSIM's window


class Psnr(FidelityMetric):
    """Against the full cache's image at the same seed, capped at 60 dB."""

    name = "psnr"
    title = "PSNR"
    tip = "In dB against the full cache's image, capped at 60."
    unit = "dB"
    within = (0, 60)
    paired = True

    def measure(self, batch: ImageBatch) -> Tensor:
        return psnr(batch.images, batch.reference)


class Ssim(FidelityMetric):
    """Against the full cache's image at the same seed."""

    name = "ssim"
    title = "SSIM"
    tip = "Against the full cache's image."
    within = (-1, 1)
    ceiling = 1.0
    paired = True
    least_side = WINDOW

    def measure(self, batch: ImageBatch) -> Tensor:
        return ssim(batch.images, batch.reference)


class PerceptualDistance(FidelityMetric):
    """LPIPS with VGG16 and the authors' linear layers."""

    meaning = "Perceptual distance to the full cache's image at the same seed, by VGG16; if its weights are available."
    name = "lpips"
    title = "LPIPS"
    better = "lower"
    within = (0.0, math.inf)
    paired = True
    plan_name = "lpips"
    least_side = 32  # after four halvings of VGG16

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


def psnr(images: Tensor, reference: Tensor) -> Tensor:
    """Return the PSNR in dB of images in [−1, 1] (clamped), capped at 60, (batch,)."""
    error = (_unit(images) - _unit(reference)).square().flatten(1).mean(1)
    return (-10 * error.clamp_min(1e-30).log10()).clamp_max(PSNR_CAP)


def ssim(images: Tensor, reference: Tensor) -> Tensor:
    """Return the structural similarity of images in [−1, 1], (batch,).

    Wang, Bovik, Sheikh and Simoncelli (2004), Eq. 13, with the authors' 11×11 Gaussian of σ 1.5, K1 = 0.01, K2 = 0.03,
    means over positions where the window fits, over channels.
    """
    import torch

    x, y = _unit(images), _unit(reference)
    taps = torch.exp(-((torch.arange(11, device=x.device) - 5.0) ** 2) / (2 * 1.5**2))
    window = (taps[:, None] * taps / taps.sum() ** 2).expand(x.size(1), 1, 11, 11)

    def blur(z: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(z, window, groups=z.size(1))

    mx, my = blur(x), blur(y)
    vx, vy, cov = blur(x * x) - mx * mx, blur(y * y) - my * my, blur(x * y) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    score = (2 * mx * my + c1) * (2 * cov + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    return score.flatten(1).mean(1)


def _unit(images: Tensor) -> Tensor:
    return (images.float().clamp(-1, 1) + 1) / 2


def files() -> dict[Path, str]:
    """Return the two files with their addresses. Raises Unsupported, with a command, if one is missing."""
    from .compute.extractor import cached, download, toolkit

    toolkit()
    from torch_fidelity.sample_similarity_lpips import URL_VGG16_LPIPS  # the linear layers

    paths = {cached(address): address for address in (VGG16, str(URL_VGG16_LPIPS))}
    for path, address in paths.items():
        if not path.is_file():
            raise Unsupported(f"not measured: needs {path.name}, get it with: {download(address)}")
    return paths
