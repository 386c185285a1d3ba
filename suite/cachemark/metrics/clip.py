"""CLIP score: how well an image fits the name of the class it was asked to be, where a CLIP model lies in a folder of this machine.

Hessel et al., "CLIPScore: A Reference-free Evaluation Metric for Image Captioning" (EMNLP 2021), Eq. 1, with 100 as the factor in place of
their 2.5, as most tables have it. The networks, the tokenizer and the preparation of images are those of Hugging Face's transformers, which
is an extra of this package; nothing is fetched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.errors import BadCheckpoint, Unsupported
from ..core.files import is_readable
from ..models.checkpoints import sha256
from .extractor import DIGITS
from .image_bytes import nearest_bytes
from .legend import CLASSES

PROMPT = "a photo of a {}"
FILES = ("config.json", "model.safetensors", "preprocessor_config.json", "tokenizer_config.json")
MORE = ("tokenizer.json", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json")  # a tokenizer has some of them
CHUNK = 32  # images per forward pass


def class_names(world: str) -> Sequence[str]:
    """The names of the classes: those of the embedded ``scene`` world, else ImageNet's 1000 as torchvision lists them."""
    if world == "scene":
        return CLASSES
    toolkit()
    from torchvision.models import ResNet18_Weights

    return [str(name) for name in ResNet18_Weights.DEFAULT.meta["categories"]]


def identity(folder: str) -> str:
    """The part of a case's identity that the model decides: the first digits of a SHA-256 over its weights, the preparation of images and
    the tokenizer, each of which changes the score. Raises Unsupported, with how to get it, where the folder lacks a file or a library is
    not installed."""
    toolkit()
    lacking = [name for name in FILES if not is_readable(Path(folder) / name)]
    if lacking:
        raise Unsupported(f"not measured: needs {', '.join(lacking)} in {folder!r}, get it with: "
                          f"hf download openai/clip-vit-base-patch16 --local-dir {folder}")
    present = [Path(folder) / name for name in (*FILES, *MORE) if is_readable(Path(folder) / name)]
    total = hashlib.sha256()
    for path in present:
        total.update(f"{path.name} {_hashed(path.resolve(), path.stat().st_size, path.stat().st_mtime_ns)}\n".encode())
    return total.hexdigest()[:DIGITS]


@cache
def _hashed(path: Path, size: int, changed: int) -> str:
    """The SHA-256 of a file; read once as long as its size and the nanosecond of its last change stay the same."""
    return sha256(path)


def toolkit() -> Any:
    """transformers, or Unsupported with how to get it and torchvision, which has the names of classes and its preparation of images."""
    try:
        import torchvision  # noqa: F401
        import transformers
    except (ImportError, RuntimeError) as error:  # the latter from a torchvision that was built for another torch
        lacking = (getattr(error, "name", None) or "a torchvision that fits this torch").partition(".")[0]
        raise Unsupported(f"not measured: needs {lacking}, get it with: pip install 'cachemark[clip]'") from error
    return transformers


class ClipScore:
    """CLIP with the embedded text of every class, its name in the ``template``, or of every prompt. Raises what :func:`identity` raises,
    and BadCheckpoint for files that do not fit together."""

    def __init__(self, folder: str, names: Sequence[str], *, template: str = PROMPT, device: str = "cpu") -> None:
        identity(folder)
        own: dict[str, Any] = {"local_files_only": True}
        try:
            self._model = toolkit().CLIPModel.from_pretrained(folder, use_safetensors=True, **own).to(device).eval()
            self._images = toolkit().CLIPImageProcessor.from_pretrained(folder, **own)
            tokenizer = toolkit().CLIPTokenizerFast.from_pretrained(folder, **own)
        except Exception as error:  # files of any origin: the readers may fail in any way
            raise BadCheckpoint(f"{folder!r} holds no CLIP model that can be read: {' '.join(str(error).split())[:300]}.",
                                remedy="Fetch the folder again.") from error
        texts = tokenizer([template.format(name) for name in names], padding=True, truncation=True, return_tensors="pt").to(device)
        with torch.inference_mode():
            self._texts = F.normalize(_vectors(self._model.get_text_features(**texts)), dim=-1)

    @torch.inference_mode()
    def __call__(self, images: Tensor, labels: Sequence[int]) -> Tensor:
        """Images (B, 3, H, W) in [−1, 1] (clamped) and their classes to (B,) on the host: 100 · max(cos, 0)."""
        found = torch.cat([self._embed(part) for part in images.split(CHUNK)])
        asked = self._texts[torch.tensor(list(labels), device=self._texts.device)]
        return 100 * (found * asked).sum(-1).clamp_min(0).cpu()

    def _embed(self, images: Tensor) -> Tensor:
        pixels = nearest_bytes(images).cpu()
        ready = self._images(list(pixels.numpy()), input_data_format="channels_first", return_tensors="pt")
        return F.normalize(_vectors(self._model.get_image_features(ready["pixel_values"].to(self._texts.device))), dim=-1)


def _vectors(found: Any) -> Tensor:
    """Projected features; newer versions of transformers hand them out inside an object."""
    return found if isinstance(found, Tensor) else found.pooler_output
