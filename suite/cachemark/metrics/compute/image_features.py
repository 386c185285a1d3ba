"""Features and class logits of generated images, and of the real images that they are compared with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as unpacked, save as packed
from torch import Tensor

from ...core.errors import BadCheckpoint, Unsupported
from ...core.files import is_readable, replacing
from .extractor import Extractor
from .image_bytes import as_bytes
from .sample_batches import Moments

SEEN, REFERENCE = "seen", "reference"  # the kind of a file: ImageFeatures or RealImages
ROWS = 1024  # rows that are in float64 at a time
TENSORS = ("mean", "covariance", "features", "logits")  # of a reference


@dataclass(frozen=True)
class ImageFeatures:
    """Features (N, F), class logits (N, C) and, if any, spatial features (N, S) of N images in order, float32, by one extractor.

    A row has the same bits whether the images come in one call or in parts: rounding depends on the batch size, so each image is
    processed in a batch of exactly ``batch``, the last one padded. This holds for one machine, number of threads and ``batch``; with
    others, features of the bundled network differ by less than 1e-4 standard deviations.
    """

    extractor: str
    features: Tensor
    logits: Tensor
    spatial: Tensor | None = None

    @classmethod
    def of(cls, images: Tensor | Iterable[Tensor], extractor: Extractor, *, device: str = "cpu", batch: int = 0) -> ImageFeatures:
        """Return the features of RGB images (N, 3, H, W), bytes or in [−1, 1], or of a stream of parts.

        ``batch`` defaults to the extractor's. At most two parts and one batch of a stream are in memory. Raises what
        :func:`.as_bytes` raises; Unsupported for an empty stream or parts of different sizes.
        """
        network, rows, batch = extractor.load().to(device), [], batch or extractor.batch
        stream = _single_images((images,) if isinstance(images, Tensor) else images)
        while block := list(islice(stream, batch)):
            padded = torch.stack(block + block[-1:] * (batch - len(block)))
            with torch.no_grad():
                rows.append([layer[: len(block)].cpu().float() for layer in network(padded.to(device))])
        if not rows:
            raise Unsupported("The stream contains no images.", remedy="Pass at least one image.")
        return cls(extractor.name, *(torch.cat(layer) for layer in zip(*rows, strict=True)))

    @classmethod
    def joined(cls, parts: Sequence[ImageFeatures]) -> ImageFeatures:
        """Return the concatenated parts of one set. Raises BadCheckpoint for parts of different extractors."""
        for part in parts[1:]:
            part.expect(parts[0].extractor)
        spatial = [part.spatial for part in parts if part.spatial is not None]
        return cls(parts[0].extractor, torch.cat([p.features for p in parts]), torch.cat([p.logits for p in parts]),
                   torch.cat(spatial) if len(spatial) == len(parts) else None)

    @property
    def layers(self) -> list[Tensor]:
        """Features, logits and, if any, spatial features."""
        return [layer for layer in (self.features, self.logits, self.spatial) if layer is not None]

    @cached_property
    def digest(self) -> str:
        """A hash of the values."""
        return tensors_digest(self.layers)

    def __len__(self) -> int:
        return len(self.features)

    def first(self, count: int) -> ImageFeatures:
        """Return the first ``count`` rows. Raises Unsupported if there are fewer."""
        if len(self) < count:
            raise Unsupported(f"{count} images are needed, and there are features of {len(self)}.",
                              remedy="Extract more, or use fewer.")
        return ImageFeatures(self.extractor, self.features[:count], self.logits[:count],
                             None if self.spatial is None else self.spatial[:count])

    def expect(self, extractor: str) -> None:
        """Raise BadCheckpoint unless the features are of this extractor."""
        _expect("The features are", self.extractor, extractor)

    def save(self, path: Path) -> None:
        """Write the exact contents to a safetensors file, atomically."""
        layers = {"features": self.features, "logits": self.logits, **({} if self.spatial is None else {"spatial": self.spatial})}
        with replacing(path) as part:
            part.write_bytes(_packed({"model": SEEN, "extractor": self.extractor}, layers))

    @classmethod
    def load(cls, path: Path, extractor: Extractor) -> ImageFeatures | None:
        """Read a file of :meth:`save`; None for a missing or damaged file, or one of another extractor or without a layer of it."""
        try:
            header, tensors = _unpacked(path.read_bytes(), SEEN)
            layers = [tensors[name] for name in ("features", "logits", *(("spatial",) if extractor.spatial else ()))]
        except Exception:  # bytes of any origin: the reader may fail in any way
            return None
        complete = all(layer.dim() == 2 and len(layer) == len(layers[0]) for layer in layers)
        return cls(extractor.name, *layers) if complete and header.get("extractor") == extractor.name else None


@dataclass(frozen=True)
class RealImages:
    """Statistics and features of real images by the extractor of this name.

    ``mean`` (F,) float32 and ``covariance`` (F, F) float64 of ``count`` images, as torch-fidelity computes them for FID; ``features``
    (M, F) and ``logits`` (M, C) float32 of M of them, for KID, precision and recall. ``floors``: by number of images, the
    FID of as many other real images with the ends of its interval, which a perfect generator would reach. ``spatial``: mean and
    covariance of spatial features, for sFID.
    """

    extractor: str
    count: int
    mean: Tensor
    covariance: Tensor
    features: Tensor
    logits: Tensor
    floors: Mapping[int, Sequence[float]] = field(default_factory=dict)
    spatial: Moments | None = None

    @classmethod
    def of(cls, features: ImageFeatures) -> RealImages:
        """Return a reference with the features of all images. Raises Unsupported for a single image."""
        if len(features) < 2:
            raise Unsupported("One image has no covariance.", remedy="Pass at least 2 images; a useful value needs thousands.")
        pooled = moments(features.features)
        spatial = None if features.spatial is None else moments(features.spatial)
        return cls(features.extractor, len(features), pooled.mean, pooled.covariance, features.features, features.logits, spatial=spatial)

    @cached_property
    def digest(self) -> str:
        """A hash of the values."""
        return tensors_digest([getattr(self, name) for name in TENSORS])

    @property
    def image_features(self) -> ImageFeatures:
        """The features and logits of the M images."""
        return ImageFeatures(self.extractor, self.features, self.logits)

    def save(self, path: Path, *, keep: int, about: str = "") -> None:
        """Write statistics, and features and logits of ``keep`` images in fp16. ``about``: a description."""
        header = {"model": REFERENCE, "extractor": self.extractor, "count": self.count, "images": about,
                  "floors": {str(count): [round(end, 6) for end in floor] for count, floor in self.floors.items()}}
        samples = {"features": self.features[:keep].half(), "logits": self.logits[:keep].half()}
        path.write_bytes(_packed(header, {"mean": self.mean, "covariance": self.covariance, **samples}))

    @classmethod
    def load(cls, path: str | Path, extractor: str) -> RealImages:
        """Read a file of :meth:`save`. Raises BadCheckpoint for another file, or one of another extractor."""
        file, remedy = Path(path), "Use a file that `python -m tools.train tiny-features` wrote."
        if not is_readable(file):
            raise BadCheckpoint(f"{str(path)!r} is not a file.", remedy=remedy)
        try:
            header, tensors = _unpacked(file.read_bytes(), REFERENCE)
            mean, covariance, features, logits = (tensors[name] for name in TENSORS)
        except Exception as error:  # bytes of any origin: the reader may fail in any way
            raise BadCheckpoint(f"{str(path)!r} contains no reference statistics: {error}.", remedy=remedy) from error
        _expect(f"{str(path)!r} is", header["extractor"], extractor)
        floors = {int(count): tuple(floor) for count, floor in header.get("floors", {}).items()}
        return cls(extractor, header["count"], mean, covariance, features.float(), logits.float(), floors)

    def expect(self, extractor: str) -> None:
        """Raise BadCheckpoint unless the reference is of this extractor."""
        _expect("The reference is", self.extractor, extractor)


def moments(features: Tensor) -> Moments:
    """Return mean and covariance of features (N, F) in torch-fidelity's types, in a third of its memory."""
    centre = features.mean(0, dtype=torch.float64)
    return Moments(torch.from_numpy(features.numpy().mean(0)), scatter(features, centre) / (len(features) - 1))


def scatter(features: Tensor, centre: Tensor) -> Tensor:
    """Return the scatter matrix (F, F) of rows (N, F) around a ``centre`` (F,), in float64."""
    total = torch.zeros(len(centre), len(centre), dtype=torch.float64)
    for part in features.split(ROWS):
        rows = part.double() - centre
        total.addmm_(rows.T, rows)
    return total


def tensors_digest(tensors: Sequence[Tensor]) -> str:
    """Return the first digits of a SHA-256 over shapes, types and values."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        total.update(tensor.contiguous().numpy().data)
    return total.hexdigest()[:24]


def _single_images(parts: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the images of a stream one by one, as bytes (3, H, W)."""
    count = 0
    size: torch.Size | None = None
    for part in parts:
        images = as_bytes(part, count)
        if size is not None and size != images.shape[1:]:
            raise Unsupported(f"Image {count} is {tuple(images.shape[1:])}, earlier ones are {tuple(size)}.",
                              remedy="Pass images of one size.")
        count, size = count + len(images), images.shape[1:]
        yield from images


def _packed(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Return a safetensors file with metadata."""
    return packed({name: t.contiguous() for name, t in tensors.items()}, {"cachemark": json.dumps(header, sort_keys=True)})


def _unpacked(data: bytes, model: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return metadata and tensors of a safetensors file: 8 bytes of length, JSON header, data.

    Raises ValueError for a file of another kind than ``model``, and any error for other bytes.
    """
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = json.loads(header.get("__metadata__", {}).get("cachemark", "{}"))
    if metadata.get("model") != model:
        raise ValueError(f"its kind is {metadata.get('model', 'nothing')!r}")
    return metadata, unpacked(data)


def _expect(what: str, extractor: str, expected: str) -> None:
    if extractor != expected:
        raise BadCheckpoint(f"{what} of the extractor {extractor!r}, not of {expected!r}.",
                            remedy="Use images and a reference of the same weights; `python -m tools.train tiny-features` writes one.")
