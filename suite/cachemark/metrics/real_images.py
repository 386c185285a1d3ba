"""Real images to compare generated ones with: statistics and features, made by one extractor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from ..core.errors import BadCheckpoint, Unsupported
from .extractor import FEATURES, toolkit
from .image_dataset import digest
from .image_features import ImageFeatures

MODEL = "reference"  # what a file of this kind says that it is
TENSORS = ("mean", "covariance", "features", "logits")


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
            raise Unsupported("One image has no covariance.", remedy="Give at least 2 images, and thousands for a figure worth reading.")
        statistics = toolkit().metric_fid.fid_features_to_statistics(features.features)
        mean, covariance = torch.from_numpy(statistics["mu"]), torch.from_numpy(statistics["sigma"])
        return cls(features.extractor, len(features), mean, covariance, features.features, features.logits)

    @cached_property
    def digest(self) -> str:
        """A name for exactly these figures."""
        return digest([getattr(self, name) for name in TENSORS])

    @property
    def image_features(self) -> ImageFeatures:
        """Features and logits of the M images."""
        return ImageFeatures(self.extractor, self.features, self.logits)

    def save(self, path: Path, *, keep: int, about: str = "") -> None:
        """Write the statistics, and features and logits of the first ``keep`` images in fp16. ``about`` says what the images are."""
        stated = {"model": MODEL, "extractor": self.extractor, "count": self.count, "images": about,
                  "floors": {str(count): [round(end, 6) for end in floor] for count, floor in self.floors.items()}}
        kept = {"features": self.features[:keep].half(), "logits": self.logits[:keep].half()}
        tensors = {"mean": self.mean, "covariance": self.covariance, **kept}
        path.write_bytes(save({k: t.contiguous() for k, t in tensors.items()}, {"cachemark": json.dumps(stated, sort_keys=True)}))

    @classmethod
    def load(cls, path: str | Path, extractor: str) -> RealImages:
        """Read what :meth:`save` wrote. Raises BadCheckpoint for another file, or where another extractor made it."""
        stated, tensors = _read(Path(path))
        if stated["extractor"] != extractor:
            raise _other(f"{str(path)!r}", stated["extractor"], extractor)
        features, logits = tensors["features"].float(), tensors["logits"].float()
        floors = {int(count): tuple(floor) for count, floor in stated.get("floors", {}).items()}
        return cls(extractor, stated["count"], tensors["mean"], tensors["covariance"], features, logits, floors)

    def expect(self, extractor: str) -> None:
        """Raise BadCheckpoint unless this extractor made the reference."""
        if self.extractor != extractor:
            raise _other("The reference", self.extractor, extractor)

    def write_cache(self, folder: Path, name: str) -> None:
        """Write everything where torch-fidelity, with ``folder`` as its cache, looks for the features and statistics of ``name``."""
        self.image_features.write_cache(folder, name)
        torch.save({"mu": self.mean.numpy(), "sigma": self.covariance.numpy()}, folder / f"{name}-{self.extractor}-stat-fid-{FEATURES}.pt")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata and the tensors of a file of reference statistics."""
    remedy = "Give a file that `python -m cachemark.tools.train tiny-features` wrote."
    if not path.is_file():
        raise BadCheckpoint(f"{str(path)!r} is not a file.", remedy=remedy)
    try:
        with safe_open(str(path), framework="pt") as file:
            stated = json.loads((file.metadata() or {}).get("cachemark", "{}"))
            if stated.get("model") != MODEL:
                raise ValueError(f"it says it is {stated.get('model', 'nothing')!r}")
            return stated, {name: file.get_tensor(name) for name in TENSORS}
    except Exception as error:  # bytes of any origin: the reader may fail in any way
        raise BadCheckpoint(f"{str(path)!r} holds no reference statistics: {error}.", remedy=remedy) from error


def _other(what: str, its: str, wanted: str) -> BadCheckpoint:
    return BadCheckpoint(f"{what} is of the extractor {its!r}, but {wanted!r} sees the images: their features mean different things.",
                         remedy="Give the reference that was made with these weights; `python -m cachemark.tools.train tiny-features` "
                                "writes its own.")
