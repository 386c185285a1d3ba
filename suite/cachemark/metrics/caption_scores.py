"""Prompt scores of captioned procedural scenes: does an image match its caption?

Ghosh et al., "GenEval: An Object-Focused Framework for Evaluating Text-to-Image Alignment" (2023), uses an object detector on
photographs. Here the bundled :class:`~cachemark.models.tiny.networks.TinyReader` classifies captioned procedural scenes. It always
chooses, so guessing gives 1/6 for an object or a color, 1/3 for a count, 1/4 for a position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from .base import ImageBatch, ImageMetric, MetricContext

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 64  # images per forward pass


class CaptionScore(ImageMetric):
    """A score by the bundled reader network, on the ``axes`` of a caption that must all be right."""

    unit = "share"
    within = (0.0, 1.0)
    of_model = True
    prompted = True
    plan_name = "prompt_score"
    axes: ClassVar[tuple[str, ...]]

    @classmethod
    def identity(cls, setting: MetricContext) -> dict[str, str]:
        from ..models import checkpoints
        from ..models.tiny.networks import READER_WEIGHTS
        from ..models.weights import packaged

        return {"weights": checkpoints.sha256(packaged(f"{READER_WEIGHTS.name}.safetensors"))}

    def measure(self, batch: ImageBatch) -> Tensor:
        import torch

        from ..models.tiny.captions import parsed

        read = self.setting.latest("captions", batch.images, self._read)
        requests = [parsed(self.setting.prompts[label]) for label in batch.labels]
        right = [all(getattr(request, axis) in (None, read[axis][number]) for axis in self.axes) for number, request in enumerate(requests)]
        return torch.tensor(right, dtype=torch.float64)

    def _read(self, images: Tensor) -> dict[str, list[int]]:
        """Return the reader's class on each axis of a caption, from the bytes of images (B, 3, 64, 64)."""
        from ..models.tiny.networks import READER_WEIGHTS
        from ..models.weights import packaged
        from .compute.image_bytes import as_bytes

        path = packaged(f"{READER_WEIGHTS.name}.safetensors")
        reader = self.setting.once("reader", lambda: READER_WEIGHTS.load(path, device=self.setting.device))
        parts = [reader.read(as_bytes(part)) for part in images.split(CHUNK)]
        return {axis: [index for part in parts for index in part[axis].tolist()] for axis in parts[0]}


class PromptScore(CaptionScore):
    """Fraction of images that show everything in their caption."""

    name = "prompt_score"
    title = "Prompt score"
    scope = "the prompt's content, not how clean shapes are or the rest of the image"
    axes = ("object", "colour", "count", "position", "texture", "ground_colour")


PROMPT_OBJECT = CaptionScore.variant(
    "prompt_object", title="Object", axes=("object",), meaning="Fraction of images with the shape in their caption.")
PROMPT_COLOR = CaptionScore.variant(
    "prompt_colour", title="Color", axes=("colour",), meaning="Fraction of images whose objects have the color in their caption.")
PROMPT_COUNT = CaptionScore.variant(
    "prompt_count", title="Count", axes=("count",), meaning="Fraction of images with the number of objects in their caption.")
PROMPT_POSITION = CaptionScore.variant(
    "prompt_position", title="Position", axes=("position",),
    meaning="Fraction of images whose objects are on the side of the ground that their caption names.")
PROMPT_GROUND = CaptionScore.variant(
    "prompt_ground", title="Ground", axes=("texture", "ground_colour"),
    meaning="Fraction of images whose ground has the texture and color in their caption.")
