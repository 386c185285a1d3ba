"""CLIP score: how well an image fits its class or its prompt, by a CLIP model in a local folder.

Hessel et al., "CLIPScore: A Reference-free Evaluation Metric for Image Captioning" (EMNLP 2021), Eq. 1, with a factor of 100 instead of
2.5, as in most tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .base import ImageBatch, ImageMetric, MetricContext
from .color_consistency import CLASSES

if TYPE_CHECKING:
    from torch import Tensor

PROMPT = "a photo of a {}"
CHUNK = 32  # texts per forward pass


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
        from .compute.pretrained import CLIP

        return {"weights": CLIP.identity(setting.options["weights"])}

    def measure(self, batch: ImageBatch) -> Tensor:
        """Return 100 · max(cos, 0)."""
        import torch

        from .compute.image_bytes import nearest_bytes
        from .compute.pretrained import Clip

        clip = Clip.shared(self.setting, self.setting.options["weights"])
        image_vectors = clip.of_images(list(nearest_bytes(batch.images).cpu().numpy()))
        vectors: dict[int, Tensor] = self.setting.once((self.name, "texts"), dict)
        missing = [label for label in dict.fromkeys(batch.labels) if label not in vectors]
        for at in range(0, len(missing), CHUNK):  # only the texts that are used
            labels = missing[at : at + CHUNK]
            vectors |= zip(labels, clip.of_texts([self._caption(label) for label in labels]), strict=True)
        text_vectors = torch.stack([vectors[label] for label in batch.labels])
        return 100 * (image_vectors * text_vectors).sum(-1).clamp_min(0).cpu()

    def _caption(self, label: int) -> str:
        return self.setting.prompts[label] if self.setting.prompts else PROMPT.format(class_names(self.setting.dataset)[label])


def class_names(dataset: str) -> Sequence[str]:
    """Return the names of the classes of the procedural scenes, or of ImageNet as in torchvision."""
    if dataset == "scene":
        return CLASSES
    from .compute.pretrained import toolkit

    toolkit()
    from torchvision.models import ResNet18_Weights

    return [str(name) for name in ResNet18_Weights.DEFAULT.meta["categories"]]
