"""The three kinds of metrics: of single images, of whole sets of images, and of what a case costs.

A metric is one class in one file, filed with ``@registry.metrics.add(name)``; those of the package are written as those of a plug-in are.
Its attributes say everything that plans, tables, gates and exports need, so no other file names it. Declarations are read where torch
is not installed: import it inside the methods that compute.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from ..core import registry
from ..core.units import Metric

if TYPE_CHECKING:
    from torch import Tensor

    from .compute.image_features import ImageFeatures
    from .compute.presets import Preset
    from .compute.quality_intervals import QualityInterval

T = TypeVar("T")


@dataclass(frozen=True)
class MetricContext:
    """The surroundings in which a metric is asked. ``options`` are those that the plan gives it, ``prompts`` the texts that the model is
    given (none for a model of classes), ``prompt_list`` the name or path of their list, ``dataset`` that of the class labels.
    ``shared`` holds networks that several metrics use."""

    device: str = "cpu"
    options: Mapping[str, str] = field(default_factory=dict)
    prompts: Sequence[str] = ()
    prompt_list: str = ""
    dataset: str = ""
    shared: dict[Any, Any] = field(default_factory=dict)

    def once(self, key: object, build: Callable[[], T]) -> T:
        """The object of that key, built when it is first asked for."""
        if key not in self.shared:
            self.shared[key] = build()
        return cast("T", self.shared[key])


@dataclass(frozen=True)
class Shown:
    """Images and tokens of some seeds. ``images`` (B, 3, H, W) fp32, nominally in [-1, 1] and not clamped; ``tokens`` (B, N) indices, or
    (B, N, C) of a masked model; ``reference`` and ``reference_tokens`` are the full cache's at the same seeds, of the same shapes. A
    metric of a plug-in is given all of them on the CPU. ``forced``: per sample the divergence along the full cache's own tokens, (samples,)
    fp64, or None where it is not computed."""

    images: Tensor
    reference: Tensor
    tokens: Tensor
    reference_tokens: Tensor
    labels: Sequence[int]
    seeds: Sequence[int]
    forced: Callable[[], Tensor] | None = None


@dataclass(frozen=True)
class ImageSet:
    """Features and class logits of a whole set of images, the preset with the real images that they are compared with, and the label
    of each image. ``intervals``: the values that torch-fidelity computes, by metric. ``full``: the features of the full cache's images at
    the same seeds, None for the full cache itself and where they are not kept."""

    features: ImageFeatures
    preset: Preset
    labels: Sequence[int]
    intervals: Mapping[str, QualityInterval]
    full: ImageFeatures | None = None


@dataclass(frozen=True)
class Costs:
    """Everything that was timed and counted of a case; None, or nothing, where it does not apply.

    ``seconds`` of each counted generation of ``batch`` images, and its ``marks``, which give the second at which a token had been drawn, by
    index; ``half`` of the ``tokens`` of an image are its first half. Bytes: of live keys and values at the fullest step
    (``live_bytes``) and between two layers (``high_water_bytes``), of the buffers of slots, of the stage that layers share and of the state
    of the method, of the pool of recorded passes (``graph_bytes``) and of the peak above the loaded model. ``flops`` of an image,
    ``passes`` and ``rejected`` drafts of each image. ``largest_batch`` and ``largest_seconds``: those of a search for the largest batch."""

    batch: int
    tokens: int = 0
    half: int = 0
    seconds: Sequence[float] = ()
    marks: Sequence[Mapping[int, float]] = ()
    live_bytes: int | None = None
    high_water_bytes: int | None = None
    slot_bytes: int | None = None
    stage_bytes: int | None = None
    state_bytes: int | None = None
    graph_bytes: int | None = None
    peak_bytes: float | None = None
    capture_seconds: float | None = None
    flops: Sequence[float] = ()
    passes: Sequence[float] = ()
    rejected: Sequence[float] = ()
    largest_batch: int | None = None
    largest_seconds: Sequence[float] = ()


class MetricBase(ABC):
    """The attributes of every metric. The first paragraph of the docstring, or ``meaning``, says what it means, as reports show it.

    ``kind`` is the group: ``speed``, ``work``, ``memory``, ``fidelity`` (nearness to the full cache's image at the same seed) or
    ``quality`` (of the images by themselves). ``within`` is the range of one image's value, from which the interval of a mean over seeds
    follows (``docs/explanation/statistics.md``); leave an end infinite only where there is none. ``better`` is ``higher`` or ``lower``.
    ``deterministic``: the same images give the same bits, so that a gate compares them exactly. ``version`` is raised when values stop
    being comparable with older ones. ``ceiling`` is a value that none exceeds, for formats in which less is better, and ``cost_name`` the
    name there. ``heading`` and ``tip`` are those of its column, and ``column`` is false where a report shows it below the table.
    """

    per: ClassVar[str] = "image"
    name: ClassVar[str]
    title: ClassVar[str] = ""
    unit: ClassVar[str] = ""
    better: ClassVar[str] = "higher"
    kind: ClassVar[str] = "quality"
    meaning: ClassVar[str] = ""
    within: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    deterministic: ClassVar[bool] = False
    version: ClassVar[int] = 1
    ceiling: ClassVar[float | None] = None
    cost_name: ClassVar[str] = ""
    heading: ClassVar[str] = ""
    tip: ClassVar[str] = ""
    column: ClassVar[bool] = True

    @classmethod
    def declared(cls) -> Metric:
        """The declaration: every attribute that the fields of :class:`~cachemark.core.units.Metric` name."""
        meaning = cls.meaning or " ".join((inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0]).split())
        title = cls.title or cls.name.replace("_", " ").capitalize()
        fields = {name: getattr(cls, name) for name in Metric.__dataclass_fields__ if hasattr(cls, name)}
        return Metric(**{**fields, "title": title, "meaning": meaning})

    @classmethod
    def definition(cls, code: str, image_set: str = "") -> dict[str, Any]:
        """The declaration of a plug-in's metric as a case states it; ``code`` is the digest of the files that define it, and ``image_set``
        names the images that a metric of whole sets is about, ``scene_2k``."""
        declaration = cls.declared()
        within = [None if math.isinf(end) else float(end) for end in cls.within]
        of_set = {"set": image_set} if cls.per == "set" else {}
        return {"title": declaration.title, "unit": cls.unit, "better": cls.better, "kind": cls.kind, "per": cls.per,
                "meaning": declaration.meaning, "within": within, "deterministic": cls.deterministic, "code": code, **of_set}


class ImageMetric(MetricBase):
    """A value of each image.

    ``asked``: the name by which a plan asks for it (its own, or that of the metric that it is a part of); empty where it is always
    measured. ``options``: what the plan must give beside the name, each a path. ``of_model``: models name it as one of theirs.
    ``prompted``: only of models that are given prompts. ``tokens``: ``indices`` or ``vectors`` where it compares tokens and not images.
    ``forced``: along the full cache's own tokens. ``paired``: meaningless where seeds draw other images than the full cache's. ``price``:
    generations that it adds. ``packages``: those that it needs. ``scope``: what it judges as a score, for claims without FID.
    ``mean_of``: not measured, but the mean of the means of these.
    """

    asked: ClassVar[str] = ""
    options: ClassVar[tuple[str, ...]] = ()
    of_model: ClassVar[bool] = False
    prompted: ClassVar[bool] = False
    tokens: ClassVar[str] = ""
    forced: ClassVar[bool] = False
    paired: ClassVar[bool] = False
    price: ClassVar[float] = 0.0
    packages: ClassVar[tuple[str, ...]] = ()
    scope: ClassVar[str] = ""
    mean_of: ClassVar[tuple[str, ...]] = ()

    setting: MetricContext = MetricContext()

    @classmethod
    def identity(cls, setting: MetricContext) -> dict[str, str]:
        """The part of a case's identity that files of the metric decide. Raises Unsupported, with how to get it, for what is missing."""
        return {}

    def prepared(self, setting: MetricContext) -> ImageMetric:
        """The metric with the surroundings in which it is asked."""
        self.setting = setting
        return self

    def applies(self, labels: Sequence[int]) -> bool:
        """Return whether images with these labels have a value."""
        return True

    @abstractmethod
    def measure(self, shown: Shown) -> Tensor:
        """The values of B images, (B,), each from its own row alone. Raise ValueError for shapes that it is not made for."""


class SetMetric(MetricBase):
    """A value of a whole set of images, in the quality pass of a plan.

    ``family``: the preset and the number of images belong to the name, ``fid_scene_2k``. With fewer images than ``per_feature`` for each
    feature of the preset's network, or ``per_class`` for each of its classes, the value would be about their number."""

    per: ClassVar[str] = "set"
    asked: ClassVar[str] = "quality"
    family: ClassVar[bool] = True
    per_feature: ClassVar[int] = 0
    per_class: ClassVar[int] = 0

    @abstractmethod
    def measure(self, images: ImageSet) -> Sequence[float]:
        """The value of the set; values of each image where the metric says no ``family``; nothing where there is none."""

    def facts(self, images: ImageSet) -> Mapping[str, Any]:
        """Facts about the value by kind: ``intervals`` (the ends of its 95 % interval), ``bias`` (the part of it that is due to the number
        of images), ``real`` (the value of as many real images) and ``to_full`` (its difference to the full cache's, with both ends)."""
        return {}


class CostMetric(MetricBase):
    """A value of each generation, or one of the case: time, bytes or FLOPs.

    ``expected``: its absence is noted in a report; of ``always``, of ``masked`` models, or of the ``search`` for the largest batch.
    ``searched``: it is measured by the search for the largest
    batch, and ``alone``: by nothing else."""

    per: ClassVar[str] = "case"
    kind: ClassVar[str] = "speed"
    better: ClassVar[str] = "lower"
    expected: ClassVar[str] = ""
    searched: ClassVar[bool] = False
    alone: ClassVar[bool] = False

    @abstractmethod
    def measure(self, costs: Costs) -> Sequence[float]:
        """The values of the counted generations, or one of the case; nothing where it does not apply."""


def known(*values: float) -> list[float | None]:
    """Values with None for what is not known, which JSON has no number for."""
    return [None if math.isnan(value) else value for value in values]


def problem(values: object, count: int, within: tuple[float, float]) -> tuple[str, str]:
    """The fault in the values of ``count`` images, and more words about it; both empty where there is none."""
    from torch import Tensor

    if not isinstance(values, Tensor) or tuple(values.shape) != (count,) or values.is_complex():
        what = f"a tensor of shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        return "wrong shape", f"{what} for {count} images, not ({count},)"
    for index, value in enumerate(values.detach().double().tolist()):
        if not math.isfinite(value):
            return "not finite", f"{value} for image {index} of {count}"
        if not within[0] <= value <= within[1]:
            return "out of its range", f"{value:g} for image {index} of {count}, not within {within[0]:g} to {within[1]:g}"
    return "", ""


def part_of(shown: Shown, part: slice) -> Shown:
    """Some of the images, with everything that belongs to them."""
    return replace(shown, images=shown.images[part], reference=shown.reference[part], tokens=shown.tokens[part],
                   reference_tokens=shown.reference_tokens[part], labels=shown.labels[part], seeds=shown.seeds[part], forced=None)


registry.metrics.base = MetricBase
