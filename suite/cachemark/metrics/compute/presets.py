"""Presets of quality: a feature extractor, real images to compare with, and the files that they need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ...core.errors import Unsupported, unknown
from ...core.units import quality_name
from ...models import checkpoints
from ...models.tiny.networks import FEATURE_WEIGHTS
from ...models.weights import packaged
from . import inception
from .extractor import Extractor
from .image_bytes import resized
from .image_features import ImageFeatures, RealImages

SCENE = "scene"
NAMES = (SCENE, *inception.LAYERS)
SCENE_OPTIONS = {"kid_subset_size": 250}  # KID has no bias in it, and sets of 500 images are common here


@dataclass(frozen=True)
class Preset:
    """Everything besides the images that a value such as ``fid_scene_2k`` depends on.

    ``name`` is part of the value's name (lowercase letters and digits). ``extractor`` gives features and logits.
    ``resize`` is the side of its input, or None for any size. ``options`` are passed to :func:`~.distribution.distribution`.
    ``names_classes``: its logits refer to the classes that a model generates.
    """

    name: str
    extractor: Extractor
    reference: RealImages
    resize: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    names_classes: bool = False

    def __post_init__(self) -> None:
        self.reference.expect(self.extractor.name)
        quality_name("fid", self.name, 1)

    @property
    def identity(self) -> dict[str, Any]:
        """The part of a case's identity that the preset determines."""
        return {"preset": self.name, "extractor": self.extractor.name, "reference": self.reference.digest, "resize": self.resize,
                "options": dict(self.options)}  # fmt: skip

    def fitting(self, images: Tensor) -> Tensor:
        """Return images of the size that the network takes."""
        return resized(images, self.resize) if self.resize and images.dim() == 4 else images

    def extract(self, images: Tensor | Iterable[Tensor], *, device: str = "cpu", batch: int = 0) -> ImageFeatures:
        """Return the features of images, resized if necessary; see :meth:`.ImageFeatures.of`."""
        parts = map(self.fitting, (images,) if isinstance(images, Tensor) else images)
        return ImageFeatures.of(parts, self.extractor, device=device, batch=batch)


def scorer(name: str, weights: str | Path = "") -> tuple[Extractor, Mapping[str, Any]]:
    """Return the extractor of a preset and its options, to compare images with others than its real ones.

    ``weights`` as for :func:`preset`. Raises UnknownName, and Unsupported, with how to get it, for a missing file."""
    if name == SCENE:
        path = Path(weights or packaged(f"{FEATURE_WEIGHTS.name}.safetensors"))
        return Extractor(checkpoints.sha256(path), partial(FEATURE_WEIGHTS.load, path)), SCENE_OPTIONS
    if name in NAMES:
        return inception.inception_extractor(inception.weights_file(weights), inception.LAYERS[name]), inception.OPTIONS
    raise unknown("preset of quality", name, NAMES)


def preset(name: str, *, weights: str | Path = "", reference: str | Path = "", device: str = "cpu", batch: int = 0) -> Preset:
    """Return a preset: ``scene`` (bundled files), ``adm`` (ImageNet) or ``coco``.

    ``weights`` of Inception default to PyTorch's download cache. Raises UnknownName, and what :func:`.inception.load` and
    :meth:`.RealImages.load` raise.
    """
    if name == SCENE:
        path, (extractor, options) = Path(weights or packaged(f"{FEATURE_WEIGHTS.name}.safetensors")), scorer(name, weights)
        real = RealImages.load(reference or path.with_suffix(".reference.safetensors"), extractor.name)
        return Preset(SCENE, extractor, real, options=options, names_classes=True)
    if name in NAMES:
        extractor, real, side = inception.load(name, weights, reference, device=device, batch=batch or inception.BATCH)
        return Preset(name, extractor, real, side, inception.OPTIONS)
    raise unknown("preset of quality", name, NAMES)


def identity_of(name: str, weights: str | Path = "", reference: str | Path = "") -> dict[str, Any]:
    """Return the preset's part of a case's identity, without building Inception.

    For a missing file of ``adm`` or ``coco``, ``missing`` states how to get it. Raises what :func:`preset` raises for other files.
    """
    if name not in inception.LAYERS:
        return preset(name, weights=weights, reference=reference).identity
    try:
        return inception.identity(name, weights, reference)
    except Unsupported as error:
        return {"preset": name, "missing": str(error), "resize": inception.SIDE}
