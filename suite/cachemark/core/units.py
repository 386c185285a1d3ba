"""Declarations of metrics, by name. The declaring classes are in :mod:`cachemark.metrics`.

``version`` belongs to the definition, not to the code: it increases when values are no longer comparable with older ones. It is part of
the result key and of exported histories.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module

from .errors import unknown


@dataclass(frozen=True)
class Metric:
    """One measured quantity.

    ``better`` is ``lower`` or ``higher``; ``kind`` is its group; ``within`` is the range of one image's value, which bounds the
    uncertainty of a mean over few images; ``per`` is ``image``, ``set`` or ``case``. The other fields are documented in
    :mod:`cachemark.metrics.base`. The metric decides which of two values is better."""

    name: str
    unit: str
    better: str
    kind: str  # speed | work | energy | memory | fidelity | quality
    title: str
    meaning: str
    deterministic: bool = False
    version: int = 1
    within: tuple[float, float] = (-math.inf, math.inf)
    per: str = "image"
    plan_name: str = ""
    of_model: bool = False
    prompted: bool = False
    tokens: str = ""
    forced: bool = False
    paired: bool = False
    scope: str = ""
    cost_name: str = ""
    mean_of: tuple[str, ...] = ()
    family: bool = False
    per_feature: int = 0
    per_class: int = 0
    ceiling: float | None = None
    stated: bool = False
    heading: str = ""
    tip: str = ""
    column: bool = True
    packages: tuple[str, ...] = ()

    @property
    def derived(self) -> bool:
        """True if it is not measured but computed from other metrics."""
        return bool(self.mean_of)

    @property
    def apart(self) -> tuple[float, float]:
        """The range of the difference of two images' values."""
        reach = self.within[1] - self.within[0]
        return (-reach, reach)

    @property
    def timed(self) -> bool:
        """True for wall times, rates and energy, which vary between processes and need a test.

        Fidelity and quality metrics in seconds, which a plug-in may declare, are values of images."""
        return self.relative or (self.kind == "work" and self.unit == "s")

    @property
    def relative(self) -> bool:
        """True for times and energy, which gates compare as ratios to the full cache of the same run."""
        return self.kind in ("speed", "energy")

    def worst(self, values: Iterable[float]) -> float:
        """Return the worst of some values."""
        return max(values) if self.better == "lower" else min(values)

    def loss(self, then: float, now: float) -> float:
        """Return by how much ``now`` is worse than ``then``, in the metric's unit; negative if it is better."""
        return now - then if self.better == "lower" else then - now

    def cost_ratio(self, then: float, now: float) -> float:
        """Return cost now over cost then, for two values ≥ 0.

        Above 1 if ``now`` is worse, 1 if both are equal, inf if the cost was 0."""
        cost, before = (now, then) if self.better == "lower" else (then, now)
        return cost / before if before else (1.0 if cost == before else math.inf)


class _Declarations(Mapping[str, Metric]):
    """The metrics of the package by name, in the order of tables, imported at the first access."""

    def __init__(self, *, families: bool) -> None:
        self._families = families

    @cached_property
    def _table(self) -> dict[str, Metric]:
        registry = import_module(f"{__package__.rpartition('.')[0]}.metrics.registry")
        return {name: metric for name, metric in registry.declarations().items() if metric.family == self._families}

    def __getitem__(self, name: str) -> Metric:
        return self._table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


METRICS = _Declarations(families=False)
FAMILIES = _Declarations(families=True)
"""Metrics of a whole set of images, one family each. What they were compared with and how many images there were belong to the name,
because values differ with both: ``fid_scene_2k``."""

# Metrics that speedups, savings, ranks and charts are derived from, by their role.
TIME, TOKEN_TIME = "latency", "latency_tokens"
JOULES, WATTS, COST = "energy_per_image", "mean_power", "cost_per_1000"
KV, LIVE_KV, WORKSPACE, STATE, PEAK, FLOPS = "kv_allocated", "kv_logical", "kv_workspace", "kv_state", "peak_memory", "flops"
LARGEST, RATE, LARGEST_RATE = "max_batch", "throughput", "throughput_max"
PIXELS, FID, PRECISION = "psnr", "fid", "precision"

SEEN = {  # features and classes of the network of a preset
    "scene": (128, 10), "adm": (2048, 1008), "coco": (2048, 1008), "adm768": (768, 1008), "adm192": (192, 1008), "adm64": (64, 1008)}
_TAIL = re.compile(r"([a-z0-9]+)_([1-9][0-9]*)(k?)")


OUTSIDE: dict[str, Metric] = {}  # of plug-ins: :mod:`cachemark.core.outside_metrics` adds those that a case of this process states


def metric(name: str) -> Metric:
    """Return the metric of that name. Raises UnknownName with the nearest one."""
    entry = METRICS.get(name) or OUTSIDE.get(name) or _of_set(name)
    if entry is None:
        parts = _TAIL.fullmatch(name.partition("_")[2])
        tail = set_name(parts[1], _count(parts)) if parts else "<preset>_<images>"
        raise unknown("metric", name, [*METRICS, *OUTSIDE, *(f"{base}_{tail}" for base in FAMILIES)])
    return entry


def is_metric(name: str) -> bool:
    """Return whether a metric of that name exists."""
    return name in METRICS or name in OUTSIDE or _of_set(name) is not None


def quality_name(base: str, preset: str, count: int) -> str:
    """Return the name of a set metric: ``fid``, ``scene`` and 2000 images give ``fid_scene_2k``.

    Raises UnknownName for another base, or a preset with other characters than lower-case letters and digits."""
    if base not in FAMILIES:
        raise unknown("metric of a set of images", base, FAMILIES)
    metric(name := f"{base}_{set_name(preset, count)}")
    return name


def set_name(preset: str, count: int) -> str:
    """Return the suffix of a set metric's name: ``scene`` and 2000 give ``scene_2k``."""
    return f"{preset}_{count // 1000}k" if count and count % 1000 == 0 else f"{preset}_{count}"


def least_images(name: str) -> int:
    """Return the smallest number of images for an informative set metric; 0 without a known bound.

    With fewer, the small number alone adds more than half of the bundled models' FID, or a tenth of an Inception score."""
    base, _, tail = name.partition("_")
    features, classes = SEEN.get(tail.split("_")[0], (0, 0))
    family = FAMILIES.get(base)
    return 0 if family is None else family.per_feature * features + family.per_class * classes


def of_plug_ins(names: Iterable[str], kind: str) -> list[str]:
    """Return the names of plug-in metrics of that kind, sorted."""
    return sorted({name for name in names if name in OUTSIDE and OUTSIDE[name].kind == kind})


def scores() -> tuple[str, ...]:
    """Return the metrics that score single images, used without values of whole sets."""
    return tuple(name for name, metric in METRICS.items() if metric.scope)


def compared_tokens(*, masked: bool, forced: bool = False) -> str:
    """Return the metric that compares tokens with the full cache's, ``forced``: along its tokens."""
    kind = "vectors" if masked else "indices"
    return next(name for name, about in METRICS.items() if about.tokens == kind and about.forced == forced)


def image_count(name: str) -> int:
    """Return the number of images in the name of a set metric, else 0."""
    parts = _TAIL.fullmatch(name.partition("_")[2]) if _of_set(name) else None
    return _count(parts) if parts else 0


def in_order(names: Iterable[str]) -> list[str]:
    """Return unique metric names: fixed ones in table order, then set metrics, sorted."""
    unique = set(names)
    return [*(name for name in METRICS if name in unique), *sorted(unique - METRICS.keys())]


def _of_set(name: str) -> Metric | None:
    """Return the set metric of a name in the spelling of :func:`quality_name`."""
    base, _, tail = name.partition("_")
    family, parts = FAMILIES.get(base), _TAIL.fullmatch(tail)
    if family is None or parts is None or tail != set_name(parts[1], _count(parts)):
        return None
    return replace(family, name=name, title=set_title(family.title, tail))


def set_title(title: str, of: str) -> str:
    """Return the title of a set metric: ``FID`` and ``scene_2k`` give ``FID, scene, 2k images``."""
    preset, _, count = of.rpartition("_")
    return f"{title}, {preset}, {count} images"


def _count(parts: re.Match[str]) -> int:
    return int(parts[2]) * (1000 if parts[3] else 1)


def is_finite(value: float) -> bool:
    """Return whether a float can represent the number; an integer of JSON may have any length."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def are_finite(values: Iterable[float]) -> bool:
    """Return whether a float can represent every number, as :func:`is_finite` does for one."""
    try:
        return all(map(math.isfinite, values))
    except OverflowError:
        return False
