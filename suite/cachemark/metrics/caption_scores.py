"""Prompt scores of captioned procedural scenes: does an image show what its caption describes?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ImageBatch, ImageMetric, MetricContext

if TYPE_CHECKING:
    from torch import Tensor


class CaptionScore(ImageMetric):
    """A score by the bundled reader network, on some axes of a caption."""

    unit = "share"
    within = (0.0, 1.0)
    of_model = True
    prompted = True
    plan_name = "prompt_score"

    @classmethod
    def identity(cls, setting: MetricContext) -> dict[str, str]:
        from .compute import prompt_scores

        return {"weights": prompt_scores.identity()}

    def measure(self, batch: ImageBatch) -> Tensor:
        from .compute.prompt_scores import PromptScores

        reader = self.setting.once("reader", lambda: PromptScores(self.setting.prompts, device=self.setting.device))
        return reader(self.name, batch.images, batch.labels)


class PromptScore(CaptionScore):
    """Fraction of images that show everything in their caption."""

    name = "prompt_score"
    title = "Prompt score"
    scope = "what the prompt asked for, not how clean shapes are or the rest of the image"


class PromptObject(CaptionScore):
    """Fraction of images with the shape in their caption."""

    name = "prompt_object"
    title = "Object"


class PromptColor(CaptionScore):
    """Fraction of images whose objects have the color in their caption."""

    name = "prompt_colour"
    title = "Color"


class PromptCount(CaptionScore):
    """Fraction of images with the number of objects in their caption."""

    name = "prompt_count"
    title = "Count"


class PromptPosition(CaptionScore):
    """Fraction of images whose objects are on the side of the ground that their caption names."""

    name = "prompt_position"
    title = "Position"


class PromptGround(CaptionScore):
    """Fraction of images whose ground has the texture and color in their caption."""

    name = "prompt_ground"
    title = "Ground"
