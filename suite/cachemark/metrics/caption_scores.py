"""Prompt scores of the procedural caption scenes: does a picture show what its caption asks for?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ImageMetric, MetricContext, Shown

if TYPE_CHECKING:
    from torch import Tensor


class CaptionScore(ImageMetric):
    """A score that the packaged reader gives, on some axes of a caption."""

    unit = "share"
    within = (0.0, 1.0)
    of_model = True
    prompted = True
    asked = "prompt_score"

    @classmethod
    def identity(cls, setting: MetricContext) -> dict[str, str]:
        from .compute import prompt_scores

        return {"weights": prompt_scores.identity()}

    def measure(self, shown: Shown) -> Tensor:
        from .compute.prompt_scores import PromptScores

        reader = self.setting.once("reader", lambda: PromptScores(self.setting.prompts, device=self.setting.device))
        return reader(self.name, shown.images, shown.labels)


class PromptScore(CaptionScore):
    """Share of images that show all that their caption asks for."""

    name = "prompt_score"
    title = "Prompt score"
    scope = "what the prompt asked for, not how clean shapes are or the rest of the image"


class PromptObject(CaptionScore):
    """Share of images with the shape that their caption asks for."""

    name = "prompt_object"
    title = "Object"


class PromptColor(CaptionScore):
    """Share of images whose objects have the colour that their caption asks for."""

    name = "prompt_colour"
    title = "Colour"


class PromptCount(CaptionScore):
    """Share of images with as many objects as their caption asks for."""

    name = "prompt_count"
    title = "Count"


class PromptPosition(CaptionScore):
    """Share of images whose objects are on the side of the ground that their caption asks for."""

    name = "prompt_position"
    title = "Position"


class PromptGround(CaptionScore):
    """Share of images whose ground has the texture and the colour that their caption asks for."""

    name = "prompt_ground"
    title = "Ground"
