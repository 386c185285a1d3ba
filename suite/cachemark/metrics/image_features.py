"""Features and class logits of images: all that has to stay in memory of a set of images."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as unpacked
from safetensors.torch import save as packed
from torch import Tensor

from ..core.errors import BadCheckpoint, Unsupported
from ..core.files import replacing
from .extractor import FEATURES, LOGITS, instance, toolkit
from .image_dataset import ImageDataset, digest

MODEL = "seen"  # what bytes of this kind say that they are


@dataclass(frozen=True)
class ImageFeatures:
    """Features (N, F) and class logits (N, C), float32, of N images in their order, by the extractor of this name.

    A row is the same to the bit whether the images came in one call or in parts: networks round differently in batches of another
    size, so each image is processed in a batch of exactly ``batch``, the last one being filled up. That holds for one machine, one number
    of threads and one ``batch``; with another, features of the embedded network differ by less than 1e-4 of a standard deviation.
    """

    extractor: str
    features: Tensor
    logits: Tensor

    @classmethod
    def of(cls, images: Tensor | Iterable[Tensor], extractor: str, *, device: str = "cpu", batch: int = 64) -> ImageFeatures:
        """The features that a registered extractor computes of images (N, 3, H, W), RGB, bytes or in [−1, 1], or of a stream of such parts.

        The extraction is torch-fidelity's own. Of a stream no more than one part and one batch are held at a time. Raises what
        :class:`~cachemark.metrics.image_dataset.ImageDataset` raises; Unsupported for an empty stream, parts of different sizes, or an
        extractor without network.
        """
        cuda = torch.device(device).type == "cuda"
        network, found = instance(extractor, cuda=cuda), []
        for block in _blocks((images,) if isinstance(images, Tensor) else images, batch):
            filled = torch.cat((block, block[-1:].expand(-len(block) % batch, -1, -1, -1)))
            rows = toolkit().utils.get_featuresdict_from_dataset(ImageDataset(filled), network, batch, cuda, True, False)
            found.append(cls(extractor, rows[FEATURES][: len(block)].float(), rows[LOGITS][: len(block)].float()))
        if not found:
            raise Unsupported("A distribution is one of images, and the stream held none.", remedy="Give at least one image.")
        return cls.joined(found)

    @classmethod
    def joined(cls, parts: Sequence[ImageFeatures]) -> ImageFeatures:
        """The parts of one set, in their order. Raises BadCheckpoint where they are of different extractors."""
        for part in parts[1:]:
            part.expect(parts[0].extractor)
        return cls(parts[0].extractor, torch.cat([p.features for p in parts]), torch.cat([p.logits for p in parts]))

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def digest(self) -> str:
        """A name for exactly these figures in this order."""
        return digest([self.features, self.logits], self.extractor)

    def first(self, count: int) -> ImageFeatures:
        """The first ``count`` of them; raises Unsupported where there are fewer."""
        if len(self) < count:
            raise Unsupported(f"{count} images are asked for, and there are features of {len(self)}.",
                              remedy="Extract more, or ask for fewer.")
        return ImageFeatures(self.extractor, self.features[:count], self.logits[:count])

    def expect(self, extractor: str) -> None:
        """Raise BadCheckpoint unless they are of this extractor."""
        if self.extractor != extractor:
            raise _other(self.extractor, extractor)

    def write_cache(self, folder: Path, name: str) -> None:
        """Write everything where torch-fidelity, with ``folder`` as its cache, looks for the features of ``name``."""
        for layer, rows in ((FEATURES, self.features), (LOGITS, self.logits)):
            torch.save(rows, folder / f"{name}-{self.extractor}-features-{layer}.pt")

    def save(self, path: Path) -> None:
        """Write :meth:`to_bytes` to a file. Another process sees all of it or nothing."""
        with replacing(path) as part:
            part.write_bytes(self.to_bytes())

    @classmethod
    def load(cls, path: Path, extractor_name: str) -> ImageFeatures | None:
        """Read what :meth:`save` wrote; None where there is no file, or none that can be read as this extractor's."""
        try:
            return cls.from_bytes(path.read_bytes(), extractor_name) if path.is_file() else None
        except BadCheckpoint:
            return None

    def to_bytes(self) -> bytes:
        """Everything, exactly, as a safetensors file."""
        stated = {"model": MODEL, "extractor": self.extractor}
        tensors = {FEATURES: self.features.contiguous(), LOGITS: self.logits.contiguous()}
        return packed(tensors, {"cachemark": json.dumps(stated, sort_keys=True)})

    @classmethod
    def from_bytes(cls, data: bytes, extractor: str) -> ImageFeatures:
        """Inverse of :meth:`to_bytes`. Raises BadCheckpoint for anything else, or for features of another extractor."""
        try:
            stated = _stated(data)
            if stated.get("model") != MODEL:
                raise ValueError(f"it says it is {stated.get('model', 'nothing')!r}")
            tensors = unpacked(data)
            features, logits = tensors[FEATURES], tensors[LOGITS]
            if features.dim() != 2 or logits.dim() != 2 or len(features) != len(logits):
                raise ValueError(f"its shapes are {tuple(features.shape)} and {tuple(logits.shape)}")
        except Exception as error:  # bytes of any origin: the reader may fail in any way
            raise BadCheckpoint(f"These {len(data)} bytes hold no features of images: {error}.",
                                remedy="They are damaged or of another kind; extract the features again.") from error
        if stated["extractor"] != extractor:
            raise _other(stated["extractor"], extractor)
        return cls(extractor, features, logits)


def _blocks(parts: Iterable[Tensor], batch: int) -> Iterator[Tensor]:
    """The images of a stream as bytes, in blocks of whole batches; the last one may be any number."""
    held: Tensor | None = None
    count = 0
    for part in parts:
        fresh = ImageDataset(part, count).bytes
        if held is not None and held.shape[1:] != fresh.shape[1:]:
            raise Unsupported(f"Image {count} is {tuple(fresh.shape[1:])}, those before it are {tuple(held.shape[1:])}.",
                              remedy="The images of one set have one size.")
        count += len(fresh)
        held = fresh if held is None else torch.cat((held, fresh))
        whole = len(held) // batch * batch
        if whole:
            yield held[:whole]
        held = held[whole:]
    if held is not None and len(held):
        yield held


def _stated(data: bytes) -> dict[str, Any]:
    """The metadata of a safetensors file: its header is JSON behind its own length in 8 bytes."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return json.loads(header.get("__metadata__", {}).get("cachemark", "{}"))


def _other(its: str, wanted: str) -> BadCheckpoint:
    return BadCheckpoint(f"The features are of the extractor {its!r}, not of {wanted!r}: they mean different things.",
                         remedy="Extract them again with the same weights as the rest.")
