"""Scores of human preference: ImageReward (Xu et al., NeurIPS 2023) and HPSv2 (Wu et al., 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ImageBatch, ImageMetric, MetricContext

if TYPE_CHECKING:
    from torch import Tensor

    from .compute.preference import PreferenceScore


class PreferenceMetric(ImageMetric):
    """A score by a network that was trained on human choices."""

    prompted = True
    options = ("weights",)

    @classmethod
    def identity(cls, setting: MetricContext) -> dict[str, str]:
        from .compute.preference import PREFERENCES

        return {"weights": PREFERENCES[cls.name].identity(setting.options["weights"])}

    def measure(self, batch: ImageBatch) -> Tensor:
        return self.setting.once(self.name, self._network)(batch.images, batch.labels)

    def _network(self) -> PreferenceScore:
        from .compute.preference import PREFERENCES, PreferenceScore

        score = PREFERENCES[self.name].load(self.setting.options["weights"], device=self.setting.device)
        return PreferenceScore(self.setting.prompts, score)


class ImageReward(PreferenceMetric):
    """The score of ImageReward."""

    name = "image_reward"
    title = "ImageReward"
    meaning = "Human preference for an image and its prompt, by ImageReward: mean 0 and deviation 1 over its authors' data."
    plan_name = "image_reward"
    ceiling = 10.0  # above every score
    packages = ("image-reward",)


class HumanPreference(PreferenceMetric):
    """The score of HPSv2."""

    name = "hpsv2"
    title = "HPSv2"
    meaning = "Human preference for an image and its prompt, by HPSv2: the cosine of their embeddings."
    plan_name = "hpsv2"
    within = (-1, 1)
    ceiling = 1.0
    packages = ("hpsv2",)
