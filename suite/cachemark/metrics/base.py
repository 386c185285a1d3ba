"""The three kinds of metrics: of single images, of whole sets of images, and of the costs of a case.

A metric is one class in one file, registered with ``@registry.metrics.add(name)``, in the package and in plug-ins alike. Its
attributes state everything that plans, tables, gates and exports need, so no other file names it. Attributes are read without torch:
import it inside the methods that compute.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from ..core import registry
from ..core.errors import Unsupported
from ..core.units import Metric
from ..models.prompt_lists import PromptList, prompt_list

if TYPE_CHECKING:
    from torch import Tensor

    from .compute.image_features import ImageFeatures
    from .compute.presets import Preset
    from .compute.quality_intervals import QualityInterval

T = TypeVar("T")


@dataclass(frozen=True)
class MetricContext:
    """The context of a measurement.

    ``options``: of this metric in the plan; ``prompts``: the texts of the model (none for a model of classes); ``prompt_list``: the
    name or path of their list; ``dataset``: of the class labels; ``shared``: networks that several metrics use.
    """

    device: str = "cpu"
    options: Mapping[str, str] = field(default_factory=dict)
    prompts: Sequence[str] = ()
    prompt_list: str = ""
    dataset: str = ""
    shared: dict[Any, Any] = field(default_factory=dict)

    def once(self, key: object, build: Callable[[], T]) -> T:
        """Return the object of this key, built at the first call."""
        if key not in self.shared:
            self.shared[key] = build()
        return cast("T", self.shared[key])

    def latest(self, key: object, images: Tensor, compute: Callable[[Tensor], T]) -> T:
        """Return what ``compute`` gives for these images; several metrics of the same images compute it once."""
        if key not in self.shared or self.shared[key][0] is not images:
            self.shared[key] = images, compute(images)
        return cast("T", self.shared[key][1])


@dataclass(frozen=True)
class ImageBatch:
    """Images and tokens of some seeds; for metrics of plug-ins on the CPU.

    ``images`` (B, 3, H, W) fp32, nominally in [-1, 1] and not clamped; ``tokens`` (B, N) indices, or (B, N, C) of a masked model;
    ``reference`` and ``reference_tokens``: the full cache's at the same seeds; ``forced``: computes the divergence of each sample along the
    full cache's own tokens, (samples,) fp64, or None.
    """

    images: Tensor
    reference: Tensor
    tokens: Tensor
    reference_tokens: Tensor
    labels: Sequence[int]
    seeds: Sequence[int]
    forced: Callable[[], Tensor] | None = None


@dataclass(frozen=True)
class ImageSet:
    """Features, class logits and labels of a whole set of images, and the preset with the real images.

    ``intervals``: the values that torch-fidelity computes, by metric. ``full``: the features of the full cache's images at the same seeds,
    or None for the full cache itself and if they are not stored.
    """

    features: ImageFeatures
    preset: Preset
    labels: Sequence[int]
    intervals: Mapping[str, QualityInterval]
    full: ImageFeatures | None = None


@dataclass(frozen=True)
class Costs:
    """All times and counts of a case; None or empty if they do not apply.

    ``seconds`` of each counted generation of ``batch`` images; ``marks``: seconds until a token was generated, by its index; ``tokens`` of
    an image, ``half`` of them in its first half. Bytes of live keys and values at the fullest step (``kv_logical``) and between two layers
    (``kv_peak``), of the buffers of slots, of the workspace that layers share, of the method's state, of the pool of captured steps
    (``graph_bytes``), and of the peak above the loaded model. ``flops``, ``passes`` and ``rejected`` drafts of each image.
    ``spans``: start and end of each counted generation by the host's monotonic clock; ``joules`` and ``watts``: its energy and mean power;
    ``price`` of the device per hour, if the run states it.
    ``largest_batch`` and ``largest_seconds``: from a search for the largest batch.
    """

    batch: int
    tokens: int = 0
    half: int = 0
    seconds: Sequence[float] = ()
    marks: Sequence[Mapping[int, float]] = ()
    kv_logical: int | None = None
    kv_peak: int | None = None
    slot_bytes: int | None = None
    workspace_bytes: int | None = None
    state_bytes: int | None = None
    graph_bytes: int | None = None
    peak_bytes: float | None = None
    capture_seconds: float | None = None
    flops: Sequence[float] = ()
    passes: Sequence[float] = ()
    rejected: Sequence[float] = ()
    spans: Sequence[tuple[float, float]] = ()
    joules: Sequence[float] = ()
    watts: Sequence[float] = ()
    price: float = 0.0
    largest_batch: int | None = None
    largest_seconds: Sequence[float] = ()

    @property
    def allocated_bytes(self) -> int | None:
        """Bytes of the buffers of slots and of the workspace."""
        return None if self.slot_bytes is None else self.slot_bytes + (self.workspace_bytes or 0)


class MetricBase(ABC):
    """Attributes of every metric. Reports print the first paragraph of its docstring, or ``meaning``.

    ``kind`` is the group: ``speed``, ``work``, ``memory``, ``fidelity`` (compared with the full cache's image at the same seed) or
    ``quality`` (of the image alone). ``within`` is the range of one image's value, which determines the interval of a mean over seeds
    (``docs/explanation/statistics.md``); an end is infinite only if there is no limit. ``better`` is ``higher`` or ``lower``.
    ``deterministic``: the same images give the same bits, so that a gate compares them exactly. ``version`` increases when values are no
    longer comparable with older ones. ``ceiling`` is an upper limit of all values, for formats where less is better, and ``cost_name``
    the name there. ``stated``: gates report the value without a verdict. ``heading`` and ``tip`` belong to its column; ``column`` is false
    if a report prints it below the table.
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
    stated: ClassVar[bool] = False
    heading: ClassVar[str] = ""
    tip: ClassVar[str] = ""
    column: ClassVar[bool] = True

    @classmethod
    def variant(cls, name: str, **attributes: Any) -> type[Self]:
        """Return the metric of this name that differs from this class in its attributes only."""
        return cast("type[Self]", type(name, (cls,), {"__module__": cls.__module__, "name": name, **attributes}))

    @classmethod
    def declared(cls) -> Metric:
        """Return the attributes as a :class:`~cachemark.core.units.Metric`."""
        meaning = cls.meaning or " ".join((inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0]).split())
        title = cls.title or cls.name.replace("_", " ").capitalize()
        fields = {name: getattr(cls, name) for name in Metric.__dataclass_fields__ if hasattr(cls, name)}
        return Metric(**{**fields, "title": title, "meaning": meaning})

    @classmethod
    def definition(cls, code: str, image_set: str = "") -> dict[str, Any]:
        """Return the declaration of a plug-in's metric for a case.

        ``code``: the digest of its files; ``image_set``: the images of a metric of whole sets, such as ``scene_2k``.
        """
        declaration = cls.declared()
        within = [None if math.isinf(end) else float(end) for end in cls.within]
        of_set = {"set": image_set} if cls.per == "set" else {}
        return {"title": declaration.title, "unit": cls.unit, "better": cls.better, "kind": cls.kind, "per": cls.per,
                "meaning": declaration.meaning, "within": within, "deterministic": cls.deterministic, "code": code, **of_set}


class ImageMetric(MetricBase):
    """A value of each image.

    ``plan_name``: its name in a plan (for a part of another metric, this metric's name); empty if it is always measured. ``options``:
    options that the plan must set in addition to the name, each a path. ``of_model``: models list it as one of their metrics.
    ``prompted``: only for models with prompts. ``tokens``: ``indices`` or ``vectors`` if it compares tokens instead of images. ``forced``:
    measured along the full cache's own tokens. ``paired``: meaningless if seeds give other images than the full cache's. ``generations``:
    number of additional ones. ``packages``: required packages. ``scope``: coverage of the score, for claims without FID. ``mean_of``: not
    measured, but the mean of the means of these metrics. ``least_side``: smallest side of an image in pixels.
    """

    least_side: ClassVar[int] = 1
    plan_name: ClassVar[str] = ""
    options: ClassVar[tuple[str, ...]] = ()
    of_model: ClassVar[bool] = False
    prompted: ClassVar[bool] = False
    tokens: ClassVar[str] = ""
    forced: ClassVar[bool] = False
    paired: ClassVar[bool] = False
    generations: ClassVar[float] = 0.0
    packages: ClassVar[tuple[str, ...]] = ()
    scope: ClassVar[str] = ""
    mean_of: ClassVar[tuple[str, ...]] = ()

    setting: MetricContext = MetricContext()

    @classmethod
    def identity(cls, setting: MetricContext) -> dict[str, str]:
        """Return the hash or version of the metric's files, as part of a case's identity.

        Raises Unsupported for missing files.
        """
        return {}

    def prepared(self, setting: MetricContext) -> ImageMetric:
        """Return the metric with its context."""
        self.setting = setting
        return self

    def applies(self, labels: Sequence[int]) -> bool:
        """Return whether images with these labels have a value."""
        return True

    @abstractmethod
    def measure(self, batch: ImageBatch) -> Tensor:
        """Return the values of B images, (B,), each from its own row. Raise ValueError for unsupported shapes."""


class FidelityMetric(ImageMetric):
    """A comparison with the full cache's image or tokens at the same seed; equal images give equal bits."""

    kind = "fidelity"
    deterministic = True


class SetMetric(MetricBase):
    """A value of a whole set of images, in the quality pass of a plan.

    ``family``: the name contains the preset and the number of images, ``fid_scene_2k``. ``per_feature`` and ``per_class``: the images
    that the value needs for each feature and class of the preset's network. ``grows``: the value depends on the number of images.
    ``resampled``: enough images give it an interval, unless few of them decide it."""

    per: ClassVar[str] = "set"
    plan_name: ClassVar[str] = "quality"
    family: ClassVar[bool] = True
    per_feature: ClassVar[int] = 0
    per_class: ClassVar[int] = 0
    grows: ClassVar[bool] = False
    resampled: ClassVar[bool] = True

    @abstractmethod
    def measure(self, images: ImageSet) -> Sequence[float]:
        """Return the set's value, or values of each image if ``family`` is false; empty without a value."""

    def facts(self, images: ImageSet) -> Mapping[str, Any]:
        """Return facts about the value by kind.

        ``intervals``: the ends of its 95 % interval; ``bias``: the part due to the number of images; ``real``: the value of as many real
        images; ``to_full``: its difference to the full cache's value, with both ends.
        """
        return {}


class CostMetric(MetricBase):
    """A value of each generation, or one of the case: time, bytes or FLOPs.

    ``searched``: the search for the largest batch measures it; ``alone``: nothing else does."""

    per: ClassVar[str] = "case"
    kind: ClassVar[str] = "speed"
    better: ClassVar[str] = "lower"
    searched: ClassVar[bool] = False
    alone: ClassVar[bool] = False

    @abstractmethod
    def measure(self, costs: Costs) -> Sequence[float]:
        """Return the values of the counted generations, or one of the case; nothing if it does not apply."""


def benchmark_prompts(setting: MetricContext, kind: str, file: str, source: str) -> PromptList:
    """Return the prompts of a benchmark. Raises Unsupported if the plan uses other prompts."""
    prompts = prompt_list(setting.prompt_list) if setting.prompt_list else None
    if prompts is None or prompts.kind != kind:
        raise Unsupported(f"not measured: needs its own prompts, named under fidelity.prompts, get them with: curl -LO {source}{file}")
    return prompts


def known(*values: float) -> list[float | None]:
    """Return values with None instead of NaN, which JSON does not have."""
    return [None if math.isnan(value) else value for value in values]


def problem(values: object, count: int, within: tuple[float, float]) -> tuple[str, str]:
    """Return the fault in the values of ``count`` images and its details; both empty without a fault."""
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


def part_of(batch: ImageBatch, part: slice) -> ImageBatch:
    """Return some of the images, with everything that belongs to them."""
    return replace(batch, images=batch.images[part], reference=batch.reference[part], tokens=batch.tokens[part],
                   reference_tokens=batch.reference_tokens[part], labels=batch.labels[part], seeds=batch.seeds[part], forced=None)


registry.metrics.base = MetricBase
