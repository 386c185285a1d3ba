"""CLIP score (Hessel et al., EMNLP 2021): how well an image fits its class or its prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ImageBatch, ImageMetric, MetricContext

if TYPE_CHECKING:
    from torch import Tensor

    from .compute.clip import ClipScore


class TextSimilarity(ImageMetric):
    """The similarity of an image and its text."""

    name = "clip_score"
    title = "CLIP score"
    meaning = ("100 times the cosine between CLIP's embeddings of the image and of \"a photo of a\" with its class; if a model is given.")
    plan_name = "clip_score"
    options = ("weights",)
    ceiling = 100.0

    @classmethod
    def identity(cls, setting: MetricContext) -> dict[str, str]:
        from .compute import clip

        return {"weights": clip.identity(setting.options["weights"])}

    def measure(self, batch: ImageBatch) -> Tensor:
        return self.setting.once("clip_score", self._network)(batch.images, batch.labels)

    def _network(self) -> ClipScore:
        from .compute.clip import Clip, ClipScore, class_names

        folder = self.setting.options["weights"]
        clip = self.setting.once(("clip", folder), lambda: Clip(folder, device=self.setting.device))
        if self.setting.prompts:
            return ClipScore(clip, self.setting.prompts, template="{}")
        return ClipScore(clip, class_names(self.setting.dataset))
