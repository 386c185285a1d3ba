"""Perceived colorfulness: spread of opponent colors and their distance from gray."""

from torch import Tensor

from cachemark.core import registry
from cachemark.metrics.base import ImageBatch, ImageMetric


@registry.metrics.add("colourfulness")
class Colourfulness(ImageMetric):
    """Colorfulness M(3) of Hasler and Süsstrunk (2003), on bytes: 0 is gray, 109 extremely colorful."""

    name = "colourfulness"
    unit = ""
    better = "higher"
    kind = "quality"
    within = (0, 298)  # rg² + yb² is at most 1.25·255², so that M is at most √1.09·√1.25·255

    def measure(self, batch: ImageBatch) -> Tensor:
        red, green, blue = ((batch.images.double().clamp(-1, 1) + 1) * 127.5).flatten(2).unbind(1)
        rg, yb = red - green, (red + green) / 2 - blue
        spread = (rg.var(1, correction=0) + yb.var(1, correction=0)).sqrt()
        return spread + 0.3 * (rg.mean(1).square() + yb.mean(1).square()).sqrt()
