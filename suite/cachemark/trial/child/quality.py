"""The quality pass: many images of a case, generated in parts, against real ones by their features."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...cache.arena import Memory
from ...core import seeds
from ...core.facts import SetFacts
from ...core.files import replacing
from ...core.spec import QUALITY_PASS, Case
from ...core.units import least_images, quality_name
from ...metrics.base import ImageSet
from ...metrics.compute.extractor import Extractor
from ...metrics.compute.feature_store import PART
from ...metrics.compute.image_features import ImageFeatures
from ...metrics.compute.presets import Preset
from ...metrics.compute.sample_batches import SampleWriter
from ...metrics.registry import set_metrics
from ...plans.manifest import manifest
from ...plans.planned import Prepared
from .bench import Job, NotFinite

NAME = "{:05d}.safetensors"  # of a part in a feature cache


@dataclass(frozen=True)
class FeatureCache:
    """The folder with the finished parts of one case; None keeps nothing. Unreadable parts are ignored."""

    folder: Path | None

    def get(self, number: int, extractor: Extractor) -> ImageFeatures | None:
        """Return the part of this number by this extractor, or None."""
        return None if self.folder is None else ImageFeatures.load(self.folder / NAME.format(number), extractor)

    def put(self, number: int, part: ImageFeatures) -> None:
        """Store a part."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            part.save(self.folder / NAME.format(number))

    def take(self, other: FeatureCache, numbers: Collection[int] | None = None) -> None:
        """Add parts of another cache with these numbers (None: all), as hard links if the file system has them."""
        if self.folder is None or other.folder is None or self.folder == other.folder:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for part in other.folder.glob("*.safetensors"):
            if numbers is not None and part.name not in map(NAME.format, numbers):
                continue
            mine = self.folder / part.name
            try:
                mine.hardlink_to(part)
            except FileExistsError:
                continue
            except OSError:
                shutil.copyfile(part, mine)


def parts(
    job: Job, preset: Preset, feature_cache: FeatureCache, share: tuple[int, int] = (0, 1), take: Callable[[Tensor], None] | None = None
) -> Iterator[ImageFeatures]:
    """Yield the features of a job's images part by part, cached or generated. Raises NotFinite.

    ``take`` gets all images as the preset's network does, so that they are generated even if features are cached.
    A share (index, of) has the parts whose number is ``index`` modulo ``of``, so that several processes can fill the cache."""
    index, of = share
    for number, part in list(enumerate(job.subset.slices(PART)))[index::of]:
        features = feature_cache.get(number, preset.extractor) if take is None else None
        if features is None:
            images = _images(replace(job, subset=part))
            features = preset.extract(images if take is None else _written(images, preset, take), device=job.device)
            feature_cache.put(number, features)
        yield features


def _written(images: Iterable[Tensor], preset: Preset, take: Callable[[Tensor], None]) -> Iterator[Tensor]:
    for part in images:
        fitting = preset.fitting(part)
        take(fitting)
        yield fitting


@contextmanager
def sample_batch(planned: Prepared, job: Job, prompts: Sequence[str]) -> Iterator[Callable[[Tensor], None] | None]:
    """Yield what writes the images of a quality pass to the case's sample batch; None if it has none."""
    plan, file = planned.sample_batch
    if not file:
        yield None
        return
    about = manifest(planned.case, job.subset.labels, job.subset.seeds, prompts, plan)
    with replacing(Path(file)) as part, SampleWriter(part, len(job.subset), job.subset.labels, about) as writer:
        yield writer.add


def cached_features(job: Job, preset: Preset, feature_cache: FeatureCache) -> ImageFeatures | None:
    """Return the features of a job's images if the cache has all of them."""
    features = [feature_cache.get(number, preset.extractor) for number in range(len(job.subset.slices(PART)))]
    present = [part for part in features if part is not None]
    return ImageFeatures.joined(present) if len(present) == len(features) else None


def _images(job: Job) -> Iterator[Tensor]:
    """Yield images (B, 3, H, W) in fp32. Raises NotFinite."""
    for chunk in job.chunks():
        images = job.decode(job.generate(chunk))
        if not bool(torch.isfinite(images).all()):
            raise NotFinite("An image of the quality pass holds NaN or infinity.")
        yield images


def set_values(images: ImageSet) -> tuple[dict[str, list[float]], SetFacts]:
    """Return samples by metric, and facts about them, for metrics with enough images."""
    samples, by_kind = dict[str, list[float]](), {kind: dict[str, Any]() for kind in ("intervals", "bias", "real", "to_full")}
    for cls in set_metrics():
        name = quality_name(cls.name, images.preset.name, len(images.features)) if cls.family else cls.name
        metric = cls()
        if least_images(name) <= len(images.features) and (values := metric.measure(images)):
            samples[name] = list(values)
            for kind, fact in metric.facts(images).items():
                by_kind[kind][name] = fact
    return samples, SetFacts(intervals=by_kind["intervals"], bias=by_kind["bias"] or None, real=by_kind["real"] or None,
                             to_full=by_kind["to_full"] or None)


def job_of(job: Job, case: Case, classes: int) -> Job:
    """Return the job of the quality pass, in a storage of its own."""
    settings = case.evaluation[QUALITY_PASS]
    subset = seeds.subset(settings["seeds"], classes).first(settings["samples"])
    return replace(job, subset=subset, batch=settings["batch"], memory=Memory(job.device, job.memory.codec))
