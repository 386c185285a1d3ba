"""CLIP score: the similarity of an image and the name of its class, by a CLIP model in a local folder.

Hessel et al., "CLIPScore: A Reference-free Evaluation Metric for Image Captioning" (EMNLP 2021), Eq. 1, with a factor of 100 instead of
2.5, as in most tables. Networks, tokenizer and image preprocessing are those of Hugging Face's transformers, an extra of this package;
nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .image_bytes import nearest_bytes
from .pretrained import built, folder_identity, toolkit
from .scene_colors import CLASSES

PROMPT = "a photo of a {}"
FILES = ("config.json", "model.safetensors", "preprocessor_config.json", "tokenizer_config.json")
MORE = ("tokenizer.json", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json")  # files of a tokenizer, if present
CHUNK = 32  # images per forward pass


def class_names(dataset: str) -> Sequence[str]:
    """Return the names of the classes of the procedural scenes, or of ImageNet as in torchvision."""
    if dataset == "scene":
        return CLASSES
    toolkit()
    from torchvision.models import ResNet18_Weights

    return [str(name) for name in ResNet18_Weights.DEFAULT.meta["categories"]]


def identity(folder: str) -> str:
    """Return the hash of weights, image preprocessing and tokenizer. Raises Unsupported if something is missing."""
    return folder_identity(folder, FILES, MORE, "openai/clip-vit-base-patch16")


class Clip:
    """CLIP from a folder. Raises Unsupported for missing files, BadCheckpoint for inconsistent ones."""

    def __init__(self, folder: str, *, device: str = "cpu") -> None:
        identity(folder)
        own: dict[str, Any] = {"local_files_only": True}
        transformers = toolkit()
        self._model: Any = built(folder, "CLIP model", lambda: transformers.CLIPModel.from_pretrained(folder, use_safetensors=True, **own))
        self._ready: Any = built(folder, "CLIP model", lambda: transformers.CLIPImageProcessor.from_pretrained(folder, **own))
        self._tokenizer: Any = built(folder, "CLIP model", lambda: transformers.CLIPTokenizerFast.from_pretrained(folder, **own))
        self._model, self.device = self._model.to(device).eval(), device

    @torch.inference_mode()
    def of_texts(self, texts: Sequence[str]) -> Tensor:
        """Return the normalized embeddings of texts, (texts, width)."""
        inputs = self._tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt").to(self.device)
        return F.normalize(_vectors(self._model.get_text_features(**inputs)), dim=-1)

    @torch.inference_mode()
    def of_images(self, images: Sequence[np.ndarray]) -> Tensor:
        """Return the normalized embeddings of images, bytes (3, H, W) of any size, (images, width)."""
        ready = self._ready([*images], input_data_format="channels_first", return_tensors="pt")
        return F.normalize(_vectors(self._model.get_image_features(ready["pixel_values"].to(self.device))), dim=-1)


class ClipScore:
    """CLIP with the embedding of every class name in the ``template``, or of every prompt."""

    def __init__(self, clip: Clip, names: Sequence[str], *, template: str = PROMPT) -> None:
        self._clip, self._names, self._template = clip, names, template
        self._texts: dict[int, Tensor] = {}

    def __call__(self, images: Tensor, labels: Sequence[int]) -> Tensor:
        """Return 100 · max(cos, 0) of images (B, 3, H, W) in [−1, 1] (clamped) and their classes, (B,)."""
        image_vectors = torch.cat([self._clip.of_images(list(nearest_bytes(part).cpu().numpy())) for part in images.split(CHUNK)])
        missing = [label for label in dict.fromkeys(labels) if label not in self._texts]
        for at in range(0, len(missing), CHUNK):  # only the prompts that are used
            part = missing[at : at + CHUNK]
            self._texts |= zip(part, self._clip.of_texts([self._template.format(self._names[label]) for label in part]), strict=True)
        text_vectors = torch.stack([self._texts[label] for label in labels])
        return 100 * (image_vectors * text_vectors).sum(-1).clamp_min(0).cpu()


def _vectors(output: Any) -> Tensor:
    """Return projected features, which newer versions of transformers wrap in an object."""
    return output if isinstance(output, Tensor) else output.pooler_output
