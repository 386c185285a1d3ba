"""LPIPS against the full cache's image at the same seed (Zhang et al., CVPR 2018)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .base import ImageBatch, ImageMetric, MetricContext

if TYPE_CHECKING:
    from torch import Tensor


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
        from .compute import lpips

        return {"weights": lpips.identity()}

    def measure(self, batch: ImageBatch) -> Tensor:
        from .compute.lpips import Lpips

        network = self.setting.once("lpips", lambda: Lpips(device=self.setting.device))
        return network(batch.images, batch.reference)
