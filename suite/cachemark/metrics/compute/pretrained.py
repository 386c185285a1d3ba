"""Pretrained networks in local folders, read by Hugging Face's transformers, an extra of this package.

Nothing is downloaded; errors give the command to get a missing file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.errors import BadCheckpoint, Unsupported
from ...core.files import is_readable
from ...models.checkpoints import sha256
from .extractor import DIGITS

if TYPE_CHECKING:
    from ..base import MetricContext

T = TypeVar("T")
CHUNK = 32  # images per forward pass of CLIP


def toolkit() -> Any:
    """Return the module transformers, which also needs torchvision. Raises Unsupported."""
    try:
        import torchvision  # noqa: F401
        import transformers
    except (ImportError, RuntimeError) as error:  # the latter from a torchvision that was built for another torch
        missing = (getattr(error, "name", None) or "a torchvision that fits this torch").partition(".")[0]
        raise Unsupported(f"not measured: needs {missing}, get it with: pip install 'cachemark[clip]'") from error
    return transformers


@dataclass(frozen=True)
class PublishedNetwork:
    """A network from Hugging Face in a folder.

    It has a ``kind`` for messages, an example, and the files that determine its values: ``needed`` files must exist; files of ``more``
    count if they exist.
    """

    kind: str
    repository: str
    needed: tuple[str, ...]
    more: tuple[str, ...] = ()

    def identity(self, folder: str) -> str:
        """Return a hash over the files. Raises Unsupported, with a remedy, for a missing file or library."""
        toolkit()
        present = required_files(folder, self.needed, self.repository)
        return files_identity(present + [Path(folder) / name for name in self.more if is_readable(Path(folder) / name)])

    def part(self, folder: str, name: str, **options: Any) -> Any:
        """Return the part that transformers' class ``name`` reads.

        Raises BadCheckpoint for an unreadable folder.
        """
        return built(folder, self.kind, lambda: getattr(toolkit(), name).from_pretrained(folder, local_files_only=True, **options))


CLIP = PublishedNetwork(
    "CLIP model", "openai/clip-vit-base-patch16",
    ("config.json", "model.safetensors", "preprocessor_config.json", "tokenizer_config.json"),
    ("tokenizer.json", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json"))
DETECTOR = PublishedNetwork(
    "detector", "facebook/mask2former-swin-small-coco-instance", ("config.json", "model.safetensors", "preprocessor_config.json"))
ANSWERER = PublishedNetwork(
    "network for visual questions", "Salesforce/blip-vqa-capfilt-large", CLIP.needed,
    ("tokenizer.json", "vocab.txt", "special_tokens_map.json", "processor_config.json", "generation_config.json"))


def required_files(folder: str, names: Sequence[str], download: str) -> list[Path]:
    """Return the paths of files in a folder.

    Raises Unsupported, with Hugging Face's command for the ``download``, if one is missing.
    """
    if missing := [name for name in names if not is_readable(Path(folder) / name)]:
        raise Unsupported(f"not measured: needs {', '.join(missing)} in {folder!r}, get it with: "
                          f"hf download {download} --local-dir {folder}")
    return [Path(folder) / name for name in names]


def files_identity(paths: Sequence[Path]) -> str:
    """Return the first digits of a SHA-256 over names and contents of files."""
    total = hashlib.sha256()
    for path in paths:
        total.update(f"{path.name} {_hashed(path.resolve(), path.stat().st_size, path.stat().st_mtime_ns)}\n".encode())
    return total.hexdigest()[:DIGITS]


@cache
def _hashed(path: Path, size: int, changed: int) -> str:
    """Return the SHA-256 of a file, cached by size and modification time."""
    return sha256(path)


def built(folder: str, what: str, build: Callable[[], T]) -> T:
    """Return the result of ``build``. Raises BadCheckpoint if it fails."""
    try:
        return build()
    except Exception as error:  # files of any origin: the readers may fail in any way
        raise BadCheckpoint(f"{folder!r} contains no readable {what}: {' '.join(str(error).split())[:300]}.",
                            remedy="Fetch the folder again.") from error


class Clip:
    """CLIP from a folder. Raises Unsupported for missing files, BadCheckpoint for inconsistent ones."""

    def __init__(self, folder: str, *, device: str = "cpu") -> None:
        CLIP.identity(folder)
        self._model, self.device = CLIP.part(folder, "CLIPModel", use_safetensors=True).to(device).eval(), device
        self._ready = CLIP.part(folder, "CLIPImageProcessor")
        self._tokenizer = CLIP.part(folder, "CLIPTokenizerFast")

    @classmethod
    def shared(cls, setting: MetricContext, folder: str) -> Clip:
        """Return the model of a folder, loaded once for all metrics."""
        return setting.once(("clip", folder), lambda: cls(folder, device=setting.device))

    @torch.inference_mode()
    def of_texts(self, texts: Sequence[str]) -> Tensor:
        """Return the normalized embeddings of texts, (texts, width)."""
        inputs = self._tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt").to(self.device)
        return F.normalize(_vectors(self._model.get_text_features(**inputs)), dim=-1)

    @torch.inference_mode()
    def of_images(self, images: Sequence[np.ndarray]) -> Tensor:
        """Return the normalized embeddings of images, bytes (3, H, W) of any size, (images, width)."""
        parts = []
        for at in range(0, len(images), CHUNK):
            ready = self._ready([*images[at : at + CHUNK]], input_data_format="channels_first", return_tensors="pt")
            parts.append(F.normalize(_vectors(self._model.get_image_features(ready["pixel_values"].to(self.device))), dim=-1))
        return torch.cat(parts)


def _vectors(output: Any) -> Tensor:
    """Return projected features, which newer versions of transformers wrap in an object."""
    return output if isinstance(output, Tensor) else output.pooler_output
