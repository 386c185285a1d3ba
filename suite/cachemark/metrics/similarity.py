"""Pixel similarity to the full cache's image at the same seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ImageBatch, ImageMetric

if TYPE_CHECKING:
    from torch import Tensor

PSNR_CAP = 60.0  # dB; identical images would give infinity


class Psnr(ImageMetric):
    """Against the full cache's image at the same seed, capped at 60 dB."""

    name = "psnr"
    title = "PSNR"
    tip = "In dB against the full cache's image, capped at 60."
    unit = "dB"
    kind = "fidelity"
    within = (0, 60)
    deterministic = True
    paired = True

    def measure(self, batch: ImageBatch) -> Tensor:
        return psnr(batch.images, batch.reference)


class Ssim(ImageMetric):
    """Against the full cache's image at the same seed."""

    name = "ssim"
    title = "SSIM"
    tip = "Against the full cache's image."
    kind = "fidelity"
    within = (-1, 1)
    ceiling = 1.0
    deterministic = True
    paired = True

    def measure(self, batch: ImageBatch) -> Tensor:
        return ssim(batch.images, batch.reference)


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
