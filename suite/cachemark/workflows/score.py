"""Scores of image folders from any tool, with the metrics and presets of the quality pass."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from ..core.errors import Unsupported
from ..core.files import head_of, is_readable, output, writing
from ..core.units import FAMILIES, METRICS, Metric, least_images, metric, quality_name
from ..core.version import __version__
from ..export.captions import captioned
from ..metrics.base import ImageBatch, ImageMetric, ImageSet, MetricContext
from ..metrics.compute import inception
from ..metrics.compute.distribution import distribution, too_few
from ..metrics.compute.extractor import Extractor
from ..metrics.compute.feature_store import ImageSource, features_of, kept_values
from ..metrics.compute.image_features import ImageFeatures, RealImages, tensors_digest
from ..metrics.compute.image_folders import ImageFolder, resizing
from ..metrics.compute.presets import SCENE, Preset, preset, scorer
from ..metrics.compute.quality_intervals import QualityInterval, intervals, least_for_intervals
from ..metrics.compute.sample_batches import SampleBatch
from ..metrics.registry import image_metrics, set_metrics
from ..models.tiny.networks import SIDE
from ..stats.intervals import means_over_seeds
from .progress_bar import ProgressBar
from .score_prompts import names, prompt_values
from .session import Machine

PAIRS, PIXELS = 32, 2**22  # most pairs, and most pixels of one side, in memory at a time
WORST = 8  # pairs of the grid
LEAST_ORDERED, SORTED = 20, 0.6  # fewest images, and highest share of the expected changes of class, of a set sorted by class
FEW_FOR_RECALL = 10_000  # images of the ADM evaluator's protocol


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

    ``absent``: the reasons for missing values, by metric. ``against``: the name of the reference. ``pairs``: all pairs, worst first.
    ``notes``: files that were not read, and doubts about the order of the images."""

    images: int
    size: tuple[int, int]
    preset: str
    against: str
    values: Mapping[str, Score]
    absent: Mapping[str, str]
    pairs: tuple[Pair, ...] = ()
    worst_by: str = ""
    notes: tuple[str, ...] = ()


@dataclass
class Collected:
    """Values and reasons while they are collected."""

    values: dict[str, Score] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def score(
    folder: str | Path, against: str | Path = "", *, preset_name: str = "", weights: str | Path = "", grid: str | Path = "",
    device: str = "cpu", prompts: str | Path = "", metrics: Sequence[tuple[str, Mapping[str, str]]] = (),
    unpaired: bool = False,
) -> Scores:
    """Score images of any tool against other images or against statistics of real images.

    ``folder``: a folder with or without subfolders, or a sample batch (npz with ``arr_0``). Images of two folders that have the same name
    up to its ending are pairs and get PSNR, SSIM and LPIPS. FID, sFID, KID, precision and recall compare the sets by the features of the
    preset, and the Inception score needs no reference. ``against``: a folder, an npz file of images, of statistics or of both,
    a safetensors file for ``scene``, or empty for the bundled real scenes of ``scene``. ``prompts``: name or path of a list of prompts,
    and ``metrics``: names with options of metrics that score each image with its prompt; with them and without ``against`` and a preset,
    sets are not compared. ``preset_name`` defaults to ``adm`` for a folder or an npz file, else to ``scene``. ``grid``: a PNG file for
    the worst pairs. ``unpaired``: compare sets alone, whatever the names of files. Raises Unsupported for images that cannot be compared,
    and the errors of :func:`.presets.preset`."""
    Machine(device).require()
    if against and not os.path.lexists(against):
        raise Unsupported(f"{against} does not exist.", remedy="Use a folder of images, or a file of statistics.")
    if against and not Path(against).is_dir() and not is_readable(against):
        raise Unsupported(f"{against} is not an ordinary file that can be read.", remedy="Use a folder of images, or a file of statistics.")
    generated = opened(folder)
    name = preset_name or (SCENE if not against or Path(against).suffix == ".safetensors" else inception.ADM)
    other = opened(against) if against and (Path(against).is_dir() or is_npz(against)) else None
    _refuse_input(grid, generated, other)
    collected, pairs, worst_by = Collected(), tuple[Pair, ...](), ""
    if (isinstance(generated, ImageFolder) and isinstance(other, ImageFolder) and not unpaired
            and (partners := generated.partners(other))):
        pairs, worst_by = _pairs(generated, other, partners, collected, device)
    elif grid:
        raise Unsupported("A grid needs pairs: no file name is in both folders." if other else "A grid needs a second folder.",
                          remedy="Use the same file name for both images of a pair, or omit --grid.")
    if metrics or prompts:
        with_prompts(generated, prompts, metrics, collected, device)
    reference_name = str(against) if against else "the bundled real scenes"
    if metrics and not against and not preset_name:
        return Scores(len(generated), generated.size, "", f"the prompts of {prompts}", collected.values, collected.absent,
                      notes=tuple(filter(None, [generated.note])))
    try:
        chosen, features = _prepared(generated, other, name, weights, against, device)
    except Unsupported as error:
        if not pairs:
            needs, _, how = error.message.partition(", get it ")  # as the reason of a case reads
            raise Unsupported(f"Preset {name} {needs.removeprefix('not measured: ')}.", remedy=f"Get it {how}") if how else error from None
        collected.absent |= dict.fromkeys(FAMILIES, str(error))
    else:
        _of_set(features, chosen, collected)
        collected.notes += order_notes(generated, features)
    if grid:
        assert isinstance(generated, ImageFolder)
        assert isinstance(other, ImageFolder)
        with writing(grid), output(grid, "PNG image") as part:
            _grid(generated, other, [(pair.name, dict(partners)[pair.name]) for pair in pairs[:WORST]]).save(part, "PNG")
    notes = tuple(filter(None, (generated.note, other.note if other else "", *collected.notes)))
    return Scores(len(generated), generated.size, name, reference_name, collected.values, collected.absent, pairs, worst_by, notes)


def _refuse_input(grid: str | Path, *inputs: ImageFolder | SampleBatch | None) -> None:
    """Raise Unsupported if the grid would replace an image that is scored."""
    target = Path(grid).resolve()
    for images in (each for each in inputs if grid and isinstance(each, ImageFolder)):
        if any((images.path / name).resolve() == target for name in images.names):
            raise Unsupported(f"{grid} is an image to score.", remedy="Write the grid to another file.")


def opened(path: str | Path) -> ImageFolder | SampleBatch:
    """Return the images at a path, by its content. Raises Unsupported or BadCheckpoint."""
    return SampleBatch(path) if is_npz(path) else ImageFolder.open(path)


def is_npz(path: str | Path) -> bool:
    """Return whether a path is a file in the zip format, or called npz."""
    return is_readable(path) and (head_of(Path(path)).startswith(b"PK") or Path(path).suffix == ".npz")


def order_notes(generated: ImageFolder | SampleBatch, features: ImageFeatures) -> list[str]:
    """Return a warning if images are sorted by class, by their labels or by the classes that the network sees.

    Splits of the Inception score in the order of the file then see few classes each, and the score is far too low."""
    labels = generated.labels if isinstance(generated, SampleBatch) else None
    classes = torch.tensor(labels) if labels else features.logits.argmax(1)
    counts = classes.unique(return_counts=True)[1].double()
    expected = (len(classes) - 1) * (1 - float((counts / len(classes)).square().sum()))
    if len(counts) < 2 or len(classes) < LEAST_ORDERED or int((classes[1:] != classes[:-1]).sum()) > SORTED * expected:
        return []
    return [f"{generated.path}: images look sorted by class ({'by their labels' if labels else 'by the classes that the network sees'}). "
            "Splits of the Inception score in this order are unfair, and the ADM evaluator's value is too low: mix the classes."]


# -- pairs ------------------------------------------------------------------------------------------------------------
def _pairs(
    first: ImageFolder, second: ImageFolder, partners: Sequence[tuple[str, str]], collected: Collected, device: str
) -> tuple[tuple[Pair, ...], str]:
    """Return the values of all pairs, worst first, and the metric that orders them.

    Add the means to ``collected``.
    """
    setting = MetricContext(device)
    metrics = dict[str, ImageMetric]()
    for name, cls in image_metrics().items():
        if cls.kind == "fidelity" and not cls.tokens:
            if min(first.size) < cls.least_side:
                collected.absent[name] = f"It needs images of at least {cls.least_side} pixels a side; these are {first.shown_size}."
                continue
            try:
                cls.identity(setting)
                metrics[name] = cls().prepared(setting)
            except Unsupported as error:
                collected.absent[name] = str(error)
    values: dict[str, list[float]] = {name: [] for name in metrics}
    step = max(1, min(PAIRS, PIXELS // (first.size[0] * first.size[1])))
    with ProgressBar("pairs", len(partners)) as bar:
        for start in range(0, len(partners), step):
            names = zip(*partners[start : start + step], strict=True)
            batch = _batch(*((part.images(mine).to(device).float() / 127.5 - 1) for part, mine in zip((first, second), names, strict=True)))
            for name, measured in metrics.items():
                values[name] += measured.measure(batch).double().tolist()
            bar.reach(start + step)
    means = means_over_seeds(values, {name: METRICS[name].within for name in values})
    for name, mean in means.items():
        ends = (mean.low, mean.high) if mean.stated else (None, None)
        collected.values[name] = as_score(METRICS[name], mean.value, *ends)
    by = list(values)[-1]  # the last column of tables (LPIPS if measured), which is closest to human perception
    order = sorted(range(len(partners)), key=lambda i: METRICS[by].loss(0.0, values[by][i]), reverse=True)
    return tuple(Pair(partners[i][0], {name: each[i] for name, each in values.items()}) for i in order), by


def with_prompts(
    generated: ImageSource, prompts: str | Path, metrics: Sequence[tuple[str, Mapping[str, str]]], collected: Collected, device: str
) -> None:
    """Add the means of metrics of images and prompts to ``collected``."""
    if not prompts or not metrics:
        raise Unsupported("Prompts and a metric of images and prompts belong together.",
                          remedy=f"Name both, e.g. --prompts prompts.txt --metric clip_score,weights=FOLDER; metrics: {', '.join(names())}")
    values, absent = prompt_values(generated, prompts, metrics, device)
    collected.absent |= absent
    for name, each in values.items():
        mean = means_over_seeds({name: each}, {name: METRICS[name].within})[name]
        collected.values[name] = as_score(METRICS[name], mean.value, *((mean.low, mean.high) if mean.stated else (None, None)))
    for name, about in METRICS.items():  # a mean of means: GenEval's score of all tasks
        if about.mean_of and all(part in values for part in about.mean_of):
            parts = [collected.values[part].value for part in about.mean_of]
            collected.values[name] = as_score(about, sum(parts) / len(parts), None, None)


def _batch(images: Tensor, reference: Tensor) -> ImageBatch:
    nothing = torch.empty(len(images), 0)
    return ImageBatch(images, reference, nothing, nothing, [0] * len(images), range(len(images)))


def _grid(first: ImageFolder, second: ImageFolder, partners: Sequence[tuple[str, str]]) -> Image.Image:
    """Return a picture with one row per pair: both images and their scaled difference, with the names of the folders."""
    first_images, second_images = first.images([name for name, _ in partners]), second.images([name for _, name in partners])
    apart = (first_images.int() - second_images.int()).abs()
    rows = torch.cat((first_images, second_images, (255 * apart // max(1, int(apart.max()))).to(torch.uint8)), 3)
    picture = Image.fromarray(rows.permute(0, 2, 3, 1).flatten(0, 1).contiguous().numpy())
    return captioned(picture, [first.path.name, second.path.name, "difference"])


# -- sets -------------------------------------------------------------------------------------------------------------
def _prepared(
    generated: ImageSource, other: ImageSource | None, name: str, weights: str | Path, against: str | Path, device: str,
) -> tuple[Preset, ImageFeatures]:
    """Return the preset and the features of the images; ``other``, if any, provides the real images or their statistics."""
    if name == SCENE:
        for images in filter(None, (generated, other)):
            _require_size(images, (SIDE, SIDE), f"preset {name} takes")
    if other is None:
        chosen = preset(name, weights=weights, reference=against, device=device)
        return chosen, _features(generated, chosen.extractor, device)
    extractor, options = scorer(name, weights)
    if isinstance(other, SampleBatch) and not len(other):
        real = inception.of_statistics(name, extractor, other)
    else:
        if isinstance(other, SampleBatch):
            _require_size(generated, other.size, f"those of {other.path} are")
        real_images = other

        def load() -> RealImages:
            return RealImages.of(_features(real_images, extractor, device))

        real = inception.with_moments(name, other, load) if isinstance(other, SampleBatch) and name != SCENE else load()
    return Preset(name, extractor, real, options=options), _features(generated, extractor, device)


def _require_size(images: ImageSource, size: tuple[int, int], what: str) -> None:
    if images.size != size:
        raise Unsupported(f"Images of {images.path} are {images.shown_size}; {what} {size[0]}×{size[1]}.",
                          remedy=resizing(images.path, size))


def _features(images: ImageSource, extractor: Extractor, device: str) -> ImageFeatures:
    with ProgressBar(f"features of {images.path}", len(images)) as bar:
        return features_of(images, extractor, device, bar.reach)


def _of_set(features: ImageFeatures, chosen: Preset, collected: Collected) -> None:
    """Add the values of the set to ``collected``, and the reasons for missing ones."""
    left_out, reasons = too_few(len(features), len(chosen.reference.features), chosen.options)
    options = {**chosen.options, **left_out}
    collected.absent |= reasons
    ends = values_of(features, chosen.reference, options)
    images = ImageSet(features, chosen, [0] * len(features), ends)
    for cls in set_metrics():
        if cls.family and (values := cls().measure(images)):
            name = quality_name(cls.name, chosen.name, len(features))
            low, high = (None if math.isnan(end) else end for end in (ends[cls.name].low, ends[cls.name].high))
            least, enough, notes = least_images(name), least_for_intervals(options), list[str]()
            if low is None:
                many = "few of the images decide it" if cls.resampled else "intervals are not computed for it"
                notes.append(f"an interval needs {enough} images" if len(features) < enough else many)
            if len(features) < least:
                notes.append(f"biased: use {least} images or more, or compare sets of equal size only")
            elif cls.grows and len(features) < FEW_FOR_RECALL:
                notes.append(f"depends on the number of images, {len(features)}: compare sets of equal size only")
            collected.values[name] = as_score(metric(name), values[0], low, high, "; ".join(notes))


def values_of(features: ImageFeatures, real: RealImages, options: Mapping[str, Any]) -> Mapping[str, QualityInterval]:
    """Return the values of a set with intervals, from an earlier score if it is kept."""
    if len(features) < least_for_intervals(options):
        return {name: QualityInterval(value, math.nan, math.nan) for name, value in distribution(features, real, **options).items()}
    return kept_values(_key(features, real, options), lambda: intervals(features, real, **options))


def _key(features: ImageFeatures, real: RealImages, options: Mapping[str, Any]) -> str:
    """Return a hash of everything that the values of a set and their intervals depend on."""
    spatial = [real.spatial.mean, real.spatial.covariance] if real.spatial else []
    inputs = (__version__, features.digest, real.digest, tensors_digest(spatial), sorted(options.items()))
    return hashlib.sha256(repr(inputs).encode()).hexdigest()


def as_score(about: Metric, value: float, low: float | None, high: float | None, note: str = "") -> Score:
    """Return a value with the unit and the direction of its metric."""
    return Score(value, low, high, about.unit, about.better, note)
