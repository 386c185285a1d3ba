"""The quality pass: many images of a case against real ones. They are made in parts, and only their features stay."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...cache.arena import Memory
from ...core import seeds
from ...core.spec import QUALITY_PASS, Case
from ...core.units import least_images, quality_name
from ...metrics.base import ImageSet
from ...metrics.compute.image_bytes import as_bytes, resized
from ...metrics.compute.image_features import ImageFeatures
from ...metrics.compute.presets import Preset
from ...metrics.registry import set_metrics
from .judge import Job

NAME = "{:05d}.safetensors"  # of a part in a feature cache
PART = 500  # images whose features are kept together: what is lost at most where a pass is interrupted


@dataclass(frozen=True)
class FeatureCache:
    """The folder that keeps the finished parts of one case; None keeps nothing. A part that cannot be read is made again."""

    folder: Path | None

    def get(self, number: int, extractor: str) -> ImageFeatures | None:
        """The part of this number as this extractor saw it, or None."""
        return None if self.folder is None else ImageFeatures.load(self.folder / NAME.format(number), extractor)

    def put(self, number: int, part: ImageFeatures) -> None:
        """Keep a part."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            part.save(self.folder / NAME.format(number))

    def take(self, other: FeatureCache) -> None:
        """Keep the parts of another cache too, without a second copy where the file system can name a file twice."""
        if self.folder is None or other.folder is None or self.folder == other.folder:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for part in other.folder.glob("*.safetensors"):
            mine = self.folder / part.name
            try:
                mine.hardlink_to(part)
            except FileExistsError:
                continue
            except OSError:
                shutil.copyfile(part, mine)


class NotFinite(ArithmeticError):
    """An image holds NaN or infinity."""


def parts(job: Job, preset: Preset, feature_cache: FeatureCache, share: tuple[int, int] = (0, 1)) -> Iterator[ImageFeatures]:
    """Features of the images of a job, part by part: what is kept, else what is made now and put in the feature cache. A share
    (index, of) are the parts whose number is ``index`` modulo ``of``, so that several processes can fill it together. Raises NotFinite."""
    index, of = share
    for number, part in list(enumerate(job.subset.slices(PART)))[index::of]:
        features = feature_cache.get(number, preset.extractor)
        if features is None:
            features = preset.extract(_finite(_decoded(replace(job, subset=part))), device=job.device)
            feature_cache.put(number, features)
        yield features


def kept(job: Job, preset: Preset, feature_cache: FeatureCache) -> ImageFeatures | None:
    """Features that another case has kept for the images of this job, if it has all of them."""
    features = [feature_cache.get(number, preset.extractor) for number in range(len(job.subset.slices(PART)))]
    there = [part for part in features if part is not None]
    return ImageFeatures.joined(there) if len(there) == len(features) else None


def _finite(batches: Iterable[Tensor]) -> Iterator[Tensor]:
    for images in batches:
        if not bool(torch.isfinite(images).all()):
            raise NotFinite("An image of the quality pass holds NaN or infinity.")
        yield images


def _decoded(job: Job) -> Iterator[Tensor]:
    """Images (B, 3, H, W) in fp32, batch by batch: one goes as soon as it has been looked at."""
    for chunk in job.chunks():
        yield job.decode(job.generate(chunk))


def pictures(job: Job, case: Case) -> Iterator[Tensor]:
    """The images of a job as bytes (B, H, W, 3), at the size that the case's preset sees. Raises Unsupported for one that is not finite."""
    side = case.evaluation[QUALITY_PASS].get("resize")
    for images in _decoded(job):
        yield as_bytes(resized(images, side) if side else images).permute(0, 2, 3, 1)


def set_values(images: ImageSet) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Samples by metric, and the facts that their classes state about them by kind. Nothing of what so few images cannot state."""
    samples, facts = dict[str, list[float]](), {"intervals": dict[str, Any]()}
    for cls in set_metrics():
        name = quality_name(cls.name, images.preset.name, len(images.features)) if cls.family else cls.name
        metric = cls()
        if least_images(name) <= len(images.features) and (values := metric.measure(images)):
            samples[name] = list(values)
            for kind, fact in metric.facts(images).items():
                facts.setdefault(kind, {})[name] = fact
    return samples, facts


def job_of(job: Job, case: Case, classes: int) -> Job:
    """The job of the quality pass, in a storage of its own."""
    settings = case.evaluation[QUALITY_PASS]
    subset = seeds.subset(settings["seeds"], classes).first(settings["samples"])
    return replace(job, subset=subset, batch=settings["batch"], memory=Memory(job.device, job.memory.codec))
