"""LPIPS against the full cache's image at the same seed (Zhang et al., CVPR 2018)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .base import ImageMetric, MetricContext, Shown

if TYPE_CHECKING:
    from torch import Tensor


class PerceptualDistance(ImageMetric):
    """LPIPS with VGG16 and the authors' linear layers."""

    meaning = "How unlike the full cache's image at the same seed it looks to VGG16; where its weights are given."
    name = "lpips"
    title = "LPIPS"
    better = "lower"
    kind = "fidelity"
    within = (0.0, math.inf)
    deterministic = True
    paired = True
    asked = "lpips"

    @classmethod
    def identity(cls, setting: MetricContext) -> dict[str, str]:
        from .compute import lpips

        return {"weights": lpips.identity()}

    def measure(self, shown: Shown) -> Tensor:
        from .compute.lpips import Lpips

        network = self.setting.once("lpips", lambda: Lpips(device=self.setting.device))
        return network(shown.images, shown.reference)
