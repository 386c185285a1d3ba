"""A preset of quality: an extractor of features and the real images to compare with, under the name that the values carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ...core.units import FAMILIES, quality_name
from .distribution import distribution
from .image_bytes import resized
from .image_features import ImageFeatures, RealImages
from .quality_intervals import RESAMPLES, QualityInterval, intervals


@dataclass(frozen=True)
class Preset:
    """Everything that a value such as ``fid_scene_2k`` depends on besides the images.

    ``name`` is what stands in it (small letters and digits). ``extractor`` is registered; it gives two layers, features and logits.
    ``resize`` is the side of the images that it is given, or None for images as they come. ``options`` are those of
    :func:`~.distribution.distribution`. ``names_classes``: its logits are those of the classes that a model is asked for.
    """

    name: str
    extractor: str
    reference: RealImages
    resize: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    names_classes: bool = False

    def __post_init__(self) -> None:
        self.reference.expect(self.extractor)
        quality_name("fid", self.name, 1)

    @property
    def identity(self) -> dict[str, Any]:
        """The part of a case's identity that the preset decides."""
        return {"preset": self.name, "extractor": self.extractor, "reference": self.reference.digest, "resize": self.resize,
                "options": dict(self.options)}  # fmt: skip

    def extract(self, images: Tensor | Iterable[Tensor], *, device: str = "cpu", batch: int = 64) -> ImageFeatures:
        """The features of images, see :meth:`~.ImageFeatures.of`, resized where the preset asks for it.

        Raises what :func:`~.image_bytes.resized` raises.
        """
        parts: Iterable[Tensor] = (images,) if isinstance(images, Tensor) else images
        if side := self.resize:
            parts = (resized(part, side) if part.dim() == 4 else part for part in parts)
        return ImageFeatures.of(parts, self.extractor, device=device, batch=batch)

    def scores(self, features: ImageFeatures, **options: Any) -> dict[str, float]:
        """The values of a set of images, by their full names. Raises what ``distribution`` raises."""
        return self._named(distribution(features, self.reference, **{**self.options, **options}), len(features))

    def intervals(
        self, features: ImageFeatures, *, resamples: int = RESAMPLES, seed: int = 0, **options: Any
    ) -> dict[str, QualityInterval]:
        """The values of :meth:`scores`, each with its interval. Raises what
        :func:`~.quality_intervals.intervals` raises."""
        by_metric = intervals(features, self.reference, resamples=resamples, seed=seed, **{**self.options, **options})
        return self._named(by_metric, len(features))

    def _named(self, by_metric: Mapping[str, Any], count: int) -> dict[str, Any]:
        return {quality_name(base, self.name, count): value for base, value in by_metric.items() if base in FAMILIES}
