"""The color consistency of the procedural scenes with the legend in their own first line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ImageMetric, Shown

if TYPE_CHECKING:
    from torch import Tensor


class ColorConsistency(ImageMetric):
    """Share of hues that obey the image's own legend (object, ground, two footer corners)."""

    name = "legend"
    title = "Legend score"
    tip = ("Share of hues that match the image's own legend. It sees neither shapes nor their number nor their place, and is no comparison "
           "with the full cache.")
    unit = "share"
    within = (0.0, 1.0)
    of_model = True
    scope = "in hues: the legend score sees neither shapes nor their number nor their place"
    sees = "hues alone"

    def measure(self, shown: Shown) -> Tensor:
        from .compute.legend import legend_score

        return legend_score(shown.images)
