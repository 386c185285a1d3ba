"""Pixel similarity to the full cache's image at the same seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ImageBatch, ImageMetric

if TYPE_CHECKING:
    from torch import Tensor


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
        from .compute.fidelity import psnr

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
        from .compute.fidelity import ssim

        return ssim(batch.images, batch.reference)
