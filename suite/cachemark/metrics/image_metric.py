"""A metric of single images that a plug-in brings: what it is given, what it answers, and what it says of itself."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..core import registry


@dataclass(frozen=True)
class Shown:
    """Images and tokens of some seeds, as a trial kept them, on the CPU. ``images`` (B, 3, H, W) fp32, nominally in [-1, 1] and
    not clamped; ``tokens`` (B, N) indices, or (B, N, C) fp32 of a masked model; ``reference`` and ``reference_tokens`` are the full cache's
    at the same seeds, of the same shapes."""

    images: Tensor
    reference: Tensor
    tokens: Tensor
    reference_tokens: Tensor
    labels: Sequence[int]
    seeds: Sequence[int]


class ImageMetric(ABC):
    """One figure of each image. The first paragraph of the docstring says what it means, as reports show it.

    ``kind`` decides what it is judged as: ``fidelity``, nearness to the full cache's image at the same seed, or ``quality``, of the image
    by itself, compared with the full cache's seed by seed. ``within`` is the range of one image's figure, from which the interval of a mean
    over seeds follows (``docs/guide/claims.md``); leave an end infinite only where there is none. ``better`` is ``higher`` or ``lower``.
    ``deterministic``: the same images give the same bits, so that a gate compares them exactly.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    unit: ClassVar[str] = ""
    better: ClassVar[str] = "higher"
    kind: ClassVar[str] = "quality"
    within: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    deterministic: ClassVar[bool] = False

    @abstractmethod
    def measure(self, shown: Shown) -> Tensor:
        """The figures of B images, (B,), each from its own row alone. Raise ValueError for shapes that it is not made for."""

    @classmethod
    def definition(cls, code: str) -> dict[str, Any]:
        """Everything that a case states of it; ``code`` is the digest of the files that define it."""
        low, high = cls.within
        meaning = " ".join((inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0]).split())
        return {"title": cls.title or cls.name.replace("_", " ").capitalize(), "unit": cls.unit, "better": cls.better, "kind": cls.kind,
                "meaning": meaning, "within": [None if math.isinf(end) else float(end) for end in (low, high)],
                "deterministic": cls.deterministic, "code": code}


def problem(values: object, count: int, within: tuple[float, float]) -> tuple[str, str]:
    """The fault in the figures of ``count`` images, and more words about it; both empty where there is none."""
    if not isinstance(values, Tensor) or tuple(values.shape) != (count,) or values.is_complex():
        given = f"a tensor of shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        return "wrong shape", f"{given} for {count} images, not ({count},)"
    for place, value in enumerate(values.detach().double().tolist()):
        if not math.isfinite(value):
            return "not finite", f"{value} for image {place} of {count}"
        if not within[0] <= value <= within[1]:
            return "out of its range", f"{value:g} for image {place} of {count}, not within {within[0]:g} to {within[1]:g}"
    return "", ""


registry.metrics.base = ImageMetric
