"""Color consistency of procedural scenes, whose regions repeat the swatches in the first line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ImageBatch, ImageMetric

if TYPE_CHECKING:
    from torch import Tensor


class ColorConsistency(ImageMetric):
    """Fraction of regions (object, ground, two footer corners) with the hue of the image's color key."""

    name = "color_consistency"
    title = "Color consistency"
    tip = ("Fraction of regions with the hue that the image's color key gives. It checks colors, not shapes, and each image "
           "alone, without the full cache.")
    unit = "share"
    within = (0.0, 1.0)
    of_model = True
    scope = "colors only, not shapes, their number or position"

    def measure(self, batch: ImageBatch) -> Tensor:
        from .compute.scene_colors import color_consistency

        return color_consistency(batch.images)
