"""Features and class logits of images, of generated ones and of the real ones that they are compared with: all that stays of a set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load as unpacked
from safetensors.torch import save as packed
from torch import Tensor
from torch.utils.data import Dataset, Subset

from ...core.errors import BadCheckpoint, Unsupported
from ...core.files import is_readable, replacing
from .extractor import FEATURES, LOGITS, instance, toolkit
from .image_bytes import as_bytes

SEEN, REFERENCE = "seen", "reference"  # what a file says that it holds: an ImageFeatures, a RealImages
TENSORS = ("mean", "covariance", "features", "logits")  # of a reference


@dataclass(frozen=True)
class ImageFeatures:
    """Features (N, F) and class logits (N, C), float32, of N images in their order, by the extractor of this name.

    A row is the same to the bit whether the images came in one call or in parts: networks round differently in batches of another
    size, so each image is processed in a batch of exactly ``batch``, the last one being filled up. That holds for one machine, one number
    of threads and one ``batch``; with another, features of the bundled network differ by less than 1e-4 of a standard deviation.
    """

    extractor: str
    features: Tensor
    logits: Tensor

    @classmethod
    def of(cls, images: Tensor | Iterable[Tensor], extractor: str, *, device: str = "cpu", batch: int = 64) -> ImageFeatures:
        """The features that a registered extractor computes of images (N, 3, H, W), RGB, bytes or in [−1, 1], or of a stream of such parts.

        The extraction is torch-fidelity's own. Of a stream no more than one part and one batch are held at a time. Raises what
        :func:`~cachemark.metrics.compute.image_bytes.as_bytes` raises; Unsupported for an empty stream, parts of different sizes, or an
        extractor without network.
        """
        cuda = torch.device(device).type == "cuda"
        network, parts = instance(extractor, cuda=cuda), []
        for block in _blocks((images,) if isinstance(images, Tensor) else images, batch):
            filled = torch.cat((block, block[-1:].expand(-len(block) % batch, -1, -1, -1)))
            dataset = Subset(cast("Dataset[Tensor]", filled), range(len(filled)))  # torch-fidelity takes nothing but data sets
            rows = toolkit().utils.get_featuresdict_from_dataset(dataset, network, batch, cuda, True, False)
            parts.append(cls(extractor, rows[FEATURES][: len(block)].float(), rows[LOGITS][: len(block)].float()))
        if not parts:
            raise Unsupported("A distribution is one of images, and the stream held none.", remedy="Give at least one image.")
        return cls.joined(parts)

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
        """A name for exactly these values in this order."""
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
        return _packed({"model": SEEN, "extractor": self.extractor}, {FEATURES: self.features, LOGITS: self.logits})

    @classmethod
    def from_bytes(cls, data: bytes, extractor: str) -> ImageFeatures:
        """Inverse of :meth:`to_bytes`. Raises BadCheckpoint for anything else, or for features of another extractor."""
        try:
            header, tensors = _unpacked(data, SEEN)
            features, logits = tensors[FEATURES], tensors[LOGITS]
            if features.dim() != 2 or logits.dim() != 2 or len(features) != len(logits):
                raise ValueError(f"its shapes are {tuple(features.shape)} and {tuple(logits.shape)}")
        except Exception as error:  # bytes of any origin: the reader may fail in any way
            raise BadCheckpoint(f"These {len(data)} bytes hold no features of images: {error}.",
                                remedy="They are damaged or of another kind; extract the features again.") from error
        if header["extractor"] != extractor:
            raise _other(header["extractor"], extractor)
        return cls(extractor, features, logits)


@dataclass(frozen=True)
class RealImages:
    """Statistics and features of real images by the extractor of this name.

    ``mean`` (F,) float32 and ``covariance`` (F, F) float64 are those of ``count`` images, as torch-fidelity computes them for FID.
    ``features`` (M, F) and ``logits`` (M, C) float32 are those of M of them, for KID, precision and recall. ``floors`` holds, by number
    of images, the FID of so many other real ones with the ends of its interval, which no generator can be expected to beat.
    """

    extractor: str
    count: int
    mean: Tensor
    covariance: Tensor
    features: Tensor
    logits: Tensor
    floors: Mapping[int, Sequence[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, features: ImageFeatures) -> RealImages:
        """The reference that these images make, with the features of all of them. Raises Unsupported for a single image, which has no
        covariance."""
        if len(features) < 2:
            raise Unsupported("One image has no covariance.", remedy="Give at least 2 images, and thousands for a value worth reading.")
        statistics = toolkit().metric_fid.fid_features_to_statistics(features.features)
        mean, covariance = torch.from_numpy(statistics["mu"]), torch.from_numpy(statistics["sigma"])
        return cls(features.extractor, len(features), mean, covariance, features.features, features.logits)

    @cached_property
    def digest(self) -> str:
        """A name for exactly these values."""
        return digest([getattr(self, name) for name in TENSORS])

    @property
    def image_features(self) -> ImageFeatures:
        """Features and logits of the M images."""
        return ImageFeatures(self.extractor, self.features, self.logits)

    def save(self, path: Path, *, keep: int, about: str = "") -> None:
        """Write the statistics, and features and logits of the first ``keep`` images in fp16. ``about`` says what the images are."""
        header = {"model": REFERENCE, "extractor": self.extractor, "count": self.count, "images": about,
                  "floors": {str(count): [round(end, 6) for end in floor] for count, floor in self.floors.items()}}
        samples = {"features": self.features[:keep].half(), "logits": self.logits[:keep].half()}
        path.write_bytes(_packed(header, {"mean": self.mean, "covariance": self.covariance, **samples}))

    @classmethod
    def load(cls, path: str | Path, extractor: str) -> RealImages:
        """Read what :meth:`save` wrote. Raises BadCheckpoint for another file, or where another extractor made it."""
        file, remedy = Path(path), "Give a file that `python -m tools.train tiny-features` wrote."
        if not is_readable(file):
            raise BadCheckpoint(f"{str(path)!r} is not a file.", remedy=remedy)
        try:
            header, tensors = _unpacked(file.read_bytes(), REFERENCE)
            mean, covariance, features, logits = (tensors[name] for name in TENSORS)
        except Exception as error:  # bytes of any origin: the reader may fail in any way
            raise BadCheckpoint(f"{str(path)!r} holds no reference statistics: {error}.", remedy=remedy) from error
        if header["extractor"] != extractor:
            raise _other_reference(f"{str(path)!r}", header["extractor"], extractor)
        floors = {int(count): tuple(floor) for count, floor in header.get("floors", {}).items()}
        return cls(extractor, header["count"], mean, covariance, features.float(), logits.float(), floors)

    def expect(self, extractor: str) -> None:
        """Raise BadCheckpoint unless this extractor made the reference."""
        if self.extractor != extractor:
            raise _other_reference("The reference", self.extractor, extractor)

    def write_cache(self, folder: Path, name: str) -> None:
        """Write everything where torch-fidelity, with ``folder`` as its cache, looks for the features and statistics of ``name``."""
        self.image_features.write_cache(folder, name)
        torch.save({"mu": self.mean.numpy(), "sigma": self.covariance.numpy()}, folder / f"{name}-{self.extractor}-stat-fid-{FEATURES}.pt")


def _blocks(parts: Iterable[Tensor], batch: int) -> Iterator[Tensor]:
    """The images of a stream as bytes, in blocks of whole batches; the last one may be any number."""
    buffer: Tensor | None = None
    count = 0
    for part in parts:
        fresh = as_bytes(part, count)
        if buffer is not None and buffer.shape[1:] != fresh.shape[1:]:
            raise Unsupported(f"Image {count} is {tuple(fresh.shape[1:])}, those before it are {tuple(buffer.shape[1:])}.",
                              remedy="The images of one set have one size.")
        count += len(fresh)
        buffer = fresh if buffer is None else torch.cat((buffer, fresh))
        full_count = len(buffer) // batch * batch
        if full_count:
            yield buffer[:full_count]
        buffer = buffer[full_count:]
    if buffer is not None and len(buffer):
        yield buffer


def digest(tensors: Iterable[Tensor], text: str = "") -> str:
    """A name for exactly these tensors and this text: 24 hex digits."""
    total = hashlib.sha256(text.encode())
    for tensor in tensors:
        total.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()[:24]


def _packed(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file with metadata."""
    return packed({name: t.contiguous() for name, t in tensors.items()}, {"cachemark": json.dumps(header, sort_keys=True)})


def _unpacked(data: bytes, model: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata and the tensors of a safetensors file, whose header is JSON behind its own length in 8 bytes. Any error may come from
    bytes that are none; ValueError from a file that says it is of another kind than ``model``."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    stated = json.loads(header.get("__metadata__", {}).get("cachemark", "{}"))
    if stated.get("model") != model:
        raise ValueError(f"it says it is {stated.get('model', 'nothing')!r}")
    return stated, unpacked(data)


def _other(its: str, expected: str) -> BadCheckpoint:
    return BadCheckpoint(f"The features are of the extractor {its!r}, not of {expected!r}: they mean different things.",
                         remedy="Extract them again with the same weights as the rest.")


def _other_reference(what: str, its: str, expected: str) -> BadCheckpoint:
    return BadCheckpoint(f"{what} is of the extractor {its!r}, but {expected!r} sees the images: their features mean different things.",
                         remedy="Give the reference that was made with these weights; `python -m tools.train tiny-features` "
                                "writes its own.")
