"""Fixed subsets of seeds and class labels, each with a name and equal on every machine.

A subset is a rule: sample ``i`` of a series has the seed ``start + i``, and its label follows from ``i`` and the number of classes. The
series ``s``, for measuring, is nested: ``s64`` is the start of ``s256`` and so on up to ``s50k``. The series ``tune``, for choosing
parameters, shares no seed with it, so that nothing is measured on its tuning data. Every prefix is balanced: the counts of two classes
differ by at most one.
"""

from __future__ import annotations

import math
import string
from dataclasses import dataclass

from .errors import BadPlan, unknown

VERSION = 1
"""Raised when any subset would hold other seeds or labels than before."""

SIZES = {"s64": 64, "s256": 256, "s2k": 2_000, "s10k": 10_000, "s50k": 50_000, "tune64": 64, "tune256": 256}
"""Name of each subset and its number of samples."""

_TUNE_START = 1_000_000  # beyond the end of the series `s`
_OTHER_SEEDS_SHIFT = 1 << 30  # beyond any start; all seeds stay below 2**31, which every generator supports
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Subset:
    """Seeds and the class label of each."""

    name: str
    seeds: list[int]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.seeds)

    def first(self, count: int) -> Subset:
        """Return the first ``count`` samples under the same name, still balanced. Raises BadPlan for too few."""
        if not 1 <= count <= len(self):
            raise BadPlan(f"{count} samples of {self.name!r} were requested.", remedy=f"Use 1 to {len(self)}, or a larger subset.")
        return Subset(self.name, self.seeds[:count], self.labels[:count])

    def slices(self, size: int) -> list[Subset]:
        """Return the samples in order in slices of ``size``; the last may be shorter.

        Slices depend on the subset and ``size`` only, so machines can share a large subset and produce the images of one machine. A slice
        is named after its samples: ``s2k[0:1000]``. Raises BadPlan for a size below 1."""
        if size < 1:
            raise BadPlan(f"{self.name!r} was to be cut into slices of {size} samples.", remedy="Use 1 or more, such as 1000.")
        cuts = [(at, min(at + size, len(self))) for at in range(0, len(self), size)]
        return [Subset(f"{self.name}[{start}:{end}]", self.seeds[start:end], self.labels[start:end]) for start, end in cuts]


def subset(name: str, classes: int) -> Subset:
    """Return a named subset for a model with ``classes`` classes. Raises UnknownName."""
    if name not in SIZES:
        raise unknown("seed subset", name, SIZES)
    start = _TUNE_START if name.startswith("tune") else 0
    return Subset(name, list(range(start, start + SIZES[name])), _labels(SIZES[name], classes))


def series_of(name: str) -> str:
    """Return the series that a subset belongs to: ``s`` for ``s256``."""
    return name.rstrip(f"{string.digits}k")


def smallest_subset(samples: int) -> str:
    """Return the smallest subset of the series ``s`` with ``samples`` samples."""
    sizes = {name: size for name, size in SIZES.items() if name.startswith("s") and size >= samples}
    if samples < 1 or not sizes:
        raise BadPlan(f"{samples} images were requested.", remedy=f"Use 1 to {max(SIZES.values())}.")
    return min(sizes, key=lambda name: sizes[name])


def other_seeds(of: Subset) -> Subset:
    """Return the same labels with seeds of no named subset, for the different-seed reference."""
    return Subset(f"{of.name} (other seeds)", [seed + _OTHER_SEEDS_SHIFT for seed in of.seeds], list(of.labels))


def _labels(count: int, classes: int) -> list[int]:
    """Return labels by a stride near the golden section of ``classes``.

    It visits every class once per round and spreads a short prefix over the whole range, because neighboring classes are often similar
    (ImageNet's first 64 are animals)."""
    assert classes > 0, classes
    nearest = round(classes * _GOLDEN)
    coprime = (s for s in range(1, classes + 1) if math.gcd(s, classes) == 1)
    stride = min(coprime, key=lambda s: (abs(s - nearest), s))
    return [i * stride % classes for i in range(count)]
