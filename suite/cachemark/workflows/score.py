"""Scores of image folders from any tool, with the metrics and presets of the quality pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from ..core.errors import Unsupported
from ..core.files import output
from ..core.units import FAMILIES, METRICS, Metric, least_images, metric, quality_name
from ..metrics.base import ImageBatch, ImageMetric, ImageSet, MetricContext
from ..metrics.compute import inception
from ..metrics.compute.distribution import distribution, too_few
from ..metrics.compute.image_features import ImageFeatures, RealImages
from ..metrics.compute.image_folders import ImageFolder, resizing
from ..metrics.compute.presets import SCENE, Preset, preset, scorer
from ..metrics.compute.quality_intervals import QualityInterval, intervals, least_for_intervals
from ..metrics.registry import image_metrics, set_metrics
from ..models.tiny.networks import SIDE
from ..stats.intervals import means_over_seeds
from ..trial.child.quality import PART
from .session import Machine, writing

PAIRS = 32  # pairs in memory at a time
WORST = 8  # pairs of the grid


@dataclass(frozen=True)
class Score:
    """A value of a set, or the mean over pairs, with the ends of its 95 % interval (None: no interval).

    ``note``: a caveat about the value."""

    value: float
    low: float | None
    high: float | None
    unit: str
    better: str
    note: str = ""


class Pair(NamedTuple):
    """Values for two images of the same name."""

    name: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Scores:
    """The values of a folder by metric.

    ``absent``: the reasons for missing values, by metric. ``against``: the name of the reference. ``pairs``: all pairs, worst first."""

    images: int
    size: tuple[int, int]
    preset: str
    against: str
    values: Mapping[str, Score]
    absent: Mapping[str, str]
    pairs: tuple[Pair, ...] = ()
    worst_by: str = ""


@dataclass
class _Collected:
    """Values and reasons while they are collected."""

    values: dict[str, Score] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


def score(
    folder: str | Path, against: str | Path = "", *, preset_name: str = "", weights: str | Path = "", grid: str | Path = "",
    device: str = "cpu",
) -> Scores:
    """Score the images of a folder against another folder or against statistics of real images.

    Images of the same name in both folders are pairs and get PSNR, SSIM and LPIPS. FID, KID, precision and recall compare the sets by the
    features of the preset, and the Inception score needs no reference. ``against``: a folder, a file of statistics (npz; safetensors for
    ``scene``), or empty for the bundled real scenes of ``scene``. ``preset_name`` defaults to ``adm`` for a folder or an npz file, else
    to ``scene``. ``grid``: a PNG file for the worst pairs. Raises Unsupported for folders that cannot be compared, and the errors of
    :func:`.presets.preset`."""
    Machine(device).require()
    if against and not Path(against).exists():
        raise Unsupported(f"{against} does not exist.", remedy="Use a folder of images, or a file of statistics.")
    generated = ImageFolder.open(folder)
    other = ImageFolder.open(against) if against and Path(against).is_dir() else None
    name = preset_name or (SCENE if not against or Path(against).suffix == ".safetensors" else inception.ADM)
    collected, pairs, worst_by = _Collected(), tuple[Pair, ...](), ""
    if other and generated.partners(other):
        pairs, worst_by = _pairs(generated, other, collected, device)
    elif grid:
        raise Unsupported("A grid needs pairs: no file name is in both folders." if other else "A grid needs a second folder.",
                          remedy="Use the same file name for both images of a pair, or omit --grid.")
    reference_name = str(against) if against else "the bundled real scenes"
    try:
        chosen, features = _prepared(generated, other, name, weights, against, device)
    except Unsupported as error:
        if not pairs:
            raise
        collected.absent |= dict.fromkeys(FAMILIES, str(error))
    else:
        _of_set(features, chosen, collected)
    if grid:
        assert other is not None
        with writing(grid), output(grid, "PNG image") as part:
            _grid(generated, other, pairs[:WORST]).save(part, "PNG")
    return Scores(len(generated), generated.size, name, reference_name, collected.values, collected.absent, pairs, worst_by)


# -- pairs ------------------------------------------------------------------------------------------------------------
def _pairs(first: ImageFolder, second: ImageFolder, collected: _Collected, device: str) -> tuple[tuple[Pair, ...], str]:
    """Return the values of all pairs, worst first, and the metric that orders them.

    Add the means to ``collected``.
    """
    setting = MetricContext(device)
    metrics = dict[str, ImageMetric]()
    for name, cls in image_metrics().items():
        if cls.kind == "fidelity" and not cls.tokens:
            try:
                cls.identity(setting)
                metrics[name] = cls().prepared(setting)
            except Unsupported as error:
                collected.absent[name] = str(error)
    values: dict[str, list[float]] = {name: [] for name in metrics}
    for start in range(0, len(first), PAIRS):
        names = first.names[start : start + PAIRS]
        batch = _batch(*((part.images(names).to(device).float() / 127.5 - 1) for part in (first, second)))
        for name, measured in metrics.items():
            values[name] += measured.measure(batch).double().tolist()
    means = means_over_seeds(values, {name: METRICS[name].within for name in values})
    for name, mean in means.items():
        ends = (mean.low, mean.high) if mean.stated else (None, None)
        collected.values[name] = _score(METRICS[name], mean.value, *ends)
    by = list(values)[-1]  # the last column of tables (LPIPS if measured), which is closest to human perception
    order = sorted(range(len(first)), key=lambda i: METRICS[by].loss(0.0, values[by][i]), reverse=True)
    return tuple(Pair(first.names[i], {name: each[i] for name, each in values.items()}) for i in order), by


def _batch(images: Tensor, reference: Tensor) -> ImageBatch:
    nothing = torch.empty(len(images), 0)
    return ImageBatch(images, reference, nothing, nothing, [0] * len(images), range(len(images)))


def _grid(first: ImageFolder, second: ImageFolder, pairs: tuple[Pair, ...]) -> Image.Image:
    """Return a picture with one row per pair: both images and their scaled difference."""
    names = [pair.name for pair in pairs]
    first_images, second_images = first.images(names), second.images(names)
    apart = (first_images.int() - second_images.int()).abs()
    rows = torch.cat((first_images, second_images, (255 * apart // max(1, int(apart.max()))).to(torch.uint8)), 3)
    return Image.fromarray(rows.permute(0, 2, 3, 1).flatten(0, 1).contiguous().numpy())


# -- sets -------------------------------------------------------------------------------------------------------------
def _prepared(
    generated: ImageFolder, other: ImageFolder | None, name: str, weights: str | Path, against: str | Path, device: str,
) -> tuple[Preset, ImageFeatures]:
    """Return the preset and the features of the images; ``other``, if any, provides the real images."""
    if name == SCENE:
        for folder in filter(None, (generated, other)):
            _require_side(folder, SIDE, f"preset {name} takes")
    if other is not None:
        extractor, options = scorer(name, weights)
        chosen = Preset(name, extractor, RealImages.of(_features(other, extractor, device)), options=options)
    else:
        chosen = _with_statistics(name, weights, against, device)
        if chosen.resize:
            _require_side(generated, chosen.resize, f"statistics of preset {name} are of")
    return chosen, _features(generated, chosen.extractor, device)


def _require_side(folder: ImageFolder, side: int, what: str) -> None:
    if folder.size != (side, side):
        raise Unsupported(f"Images of {folder.path} are {folder.shown_size}; {what} {side}×{side}.",
                          remedy=resizing(folder.path, (side, side)))


def _with_statistics(name: str, weights: str | Path, file: str | Path, device: str) -> Preset:
    """Return the preset with the real statistics of a file, which may have a mean and covariance only."""
    if name == SCENE or (moments := inception.statistics_alone(file)) is None:
        return preset(name, weights=weights, reference=file, device=device)
    (extractor, options), (mean, covariance) = scorer(name, weights), moments
    nothing = torch.empty(0, len(mean))
    return Preset(name, extractor, RealImages(extractor.name, 0, mean, covariance, nothing, nothing), options=options)


def _features(folder: ImageFolder, extractor: Any, device: str) -> ImageFeatures:
    """Return the features of all images, in the parts of a quality pass for bit-equal results."""
    if len(folder) < 2:
        raise Unsupported(f"{folder.path} has one image; FID needs at least 2.", remedy="Add images.")
    return ImageFeatures.joined([ImageFeatures.of(part, extractor, device=device) for part in folder.parts(PART)])


def _of_set(features: ImageFeatures, chosen: Preset, collected: _Collected) -> None:
    """Add the values of the set to ``collected``, and the reasons for missing ones."""
    left_out, reasons = too_few(len(features), len(chosen.reference.features), chosen.options)
    options = {**chosen.options, **left_out}
    collected.absent |= reasons
    if len(features) < least_for_intervals(options):
        alone = distribution(features, chosen.reference, **options)
        ends = {name: QualityInterval(value, math.nan, math.nan) for name, value in alone.items()}
    else:
        ends = intervals(features, chosen.reference, **options)
    images = ImageSet(features, chosen, [0] * len(features), ends)
    for cls in set_metrics():
        if cls.family and (values := cls().measure(images)):
            name = quality_name(cls.name, chosen.name, len(features))
            low, high = (None if math.isnan(end) else end for end in (ends[cls.name].low, ends[cls.name].high))
            least, note = least_images(name), ""
            if len(features) < least:
                note = f"biased: use {least} images or more, or compare sets of equal size only"
            collected.values[name] = _score(metric(name), values[0], low, high, note)


def _score(about: Metric, value: float, low: float | None, high: float | None, note: str = "") -> Score:
    return Score(value, low, high, about.unit, about.better, note)
