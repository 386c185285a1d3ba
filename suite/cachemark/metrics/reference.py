"""What generated images are compared with: statistics and features of real images, made by one extractor."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import BadCheckpoint, Unsupported
from .features import FEATURES, LOGITS, toolkit

MODEL = "reference"  # what a file of this kind says that it is
TENSORS = ("mean", "covariance", "features", "logits")


class Pictures(Dataset[Tensor]):
    """Images as torch-fidelity wants them: a data set of bytes (3, H, W), RGB.

    From bytes (N, 3, H, W), or from numbers in [−1, 1] (clamped), which become the nearest byte as in a PNG file. Raises Unsupported
    for another shape, no image, or values that are not finite.
    """

    def __init__(self, images: Tensor) -> None:
        if images.dim() != 4 or images.shape[1] != 3 or not len(images):
            raise Unsupported(f"A distribution is one of images (N, 3, H, W), got a tensor of shape {tuple(images.shape)}.",
                              remedy="Give the decoded images, RGB, as bytes or in [−1, 1].")
        self.bytes = (images if images.dtype == torch.uint8 else _bytes(images)).cpu().contiguous()

    def __len__(self) -> int:
        return len(self.bytes)

    def __getitem__(self, index: int) -> Tensor:
        return self.bytes[index]

    @cached_property
    def digest(self) -> str:
        """A name for exactly these images in this order."""
        return _digest([self.bytes])


@dataclass(frozen=True)
class Reference:
    """Real images as the extractor of this name sees them.

    ``mean`` (F,) float32 and ``covariance`` (F, F) float64 are those of ``count`` images, as torch-fidelity computes them for FID.
    ``features`` (M, F) and ``logits`` (M, C) float32 are those of the first M of them, for KID, precision and recall.
    """

    extractor: str
    count: int
    mean: Tensor
    covariance: Tensor
    features: Tensor
    logits: Tensor

    @classmethod
    def of(cls, images: Tensor, extractor: str, *, device: str = "cpu", batch: int = 64) -> Reference:
        """The reference that these images make, with the features of all of them. Raises what :class:`Pictures` raises, and
        Unsupported for a single image, which has no covariance."""
        pictures = Pictures(images)
        if len(pictures) < 2:
            raise Unsupported("One image has no covariance.", remedy="Give at least 2 images, and thousands for a figure worth reading.")
        utils, cuda = toolkit().utils, torch.device(device).type == "cuda"
        network = utils.create_feature_extractor(extractor, [FEATURES, LOGITS], cuda=cuda, verbose=False)
        found = utils.get_featuresdict_from_dataset(pictures, network, batch, cuda, True, False)
        statistics = toolkit().metric_fid.fid_features_to_statistics(found[FEATURES])
        mean, covariance = torch.from_numpy(statistics["mu"]), torch.from_numpy(statistics["sigma"])
        return cls(extractor, len(pictures), mean, covariance, found[FEATURES], found[LOGITS])

    @cached_property
    def digest(self) -> str:
        """A name for exactly these figures."""
        return _digest([getattr(self, name) for name in TENSORS])

    def save(self, path: Path, *, keep: int, about: str = "") -> None:
        """Write the statistics, and features and logits of the first ``keep`` images in fp16. ``about`` says what the images are."""
        stated = {"model": MODEL, "extractor": self.extractor, "count": self.count, "images": about}
        kept = {"features": self.features[:keep].half(), "logits": self.logits[:keep].half()}
        tensors = {"mean": self.mean, "covariance": self.covariance, **kept}
        path.write_bytes(save({k: t.contiguous() for k, t in tensors.items()}, {"cachemark": json.dumps(stated, sort_keys=True)}))

    @classmethod
    def load(cls, path: str | Path, extractor: str) -> Reference:
        """Read what :meth:`save` wrote. Raises BadCheckpoint for another file, or where another extractor made it."""
        stated, tensors = _read(Path(path))
        if stated["extractor"] != extractor:
            raise _other(f"{str(path)!r}", stated["extractor"], extractor)
        features, logits = tensors["features"].float(), tensors["logits"].float()
        return cls(extractor, stated["count"], tensors["mean"], tensors["covariance"], features, logits)

    def expect(self, extractor: str) -> None:
        """Raise BadCheckpoint unless this extractor made the reference."""
        if self.extractor != extractor:
            raise _other("The reference", self.extractor, extractor)

    def lay(self, folder: Path, name: str) -> None:
        """Write everything where torch-fidelity, with ``folder`` as its cache, looks for the features and statistics of ``name``."""
        start = f"{name}-{self.extractor}"
        torch.save(self.features, folder / f"{start}-features-{FEATURES}.pt")
        torch.save(self.logits, folder / f"{start}-features-{LOGITS}.pt")
        torch.save({"mu": self.mean.numpy(), "sigma": self.covariance.numpy()}, folder / f"{start}-stat-fid-{FEATURES}.pt")


def _bytes(images: Tensor) -> Tensor:
    """Numbers in [−1, 1] to the nearest bytes; raises Unsupported where one is not finite."""
    bad = (~torch.isfinite(images)).flatten(1).any(1).nonzero().flatten()
    if len(bad):
        raise Unsupported(f"{len(bad)} of {len(images)} images hold NaN or infinite values, the first is number {int(bad[0])}.",
                          remedy="Such images have no quality: mend the method that made them, or leave it out.")
    return ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file of reference statistics says about itself, and its tensors."""
    remedy = "Give a file that `cachemark train tiny-features` wrote."
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
                         remedy="Give the reference that `cachemark train tiny-features` wrote beside these weights.")


def _digest(tensors: list[Tensor]) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()[:24]
