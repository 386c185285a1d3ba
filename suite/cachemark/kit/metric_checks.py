"""Checks of a metric of single images: attributes, types and ranges, and batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..core import registry
from ..core.errors import Unsupported
from ..metrics.base import ImageBatch, ImageMetric, problem
from .common import Findings
from .findings import Example, KitFinding

CLOSE = 1e-4  # of values, relative to the largest
SHAPES = (  # sides of images and shapes of their tokens, as the models here have them, the smallest first
    (16, (16,)), (64, (64,)), (64, (256,)), (64, (256, 16)), (256, (256,)), (256, (256, 16)),
)  # fmt: skip
COLORS = {"black": (-1.0, -1.0, -1.0), "white": (1.0, 1.0, 1.0), "gray": (0.0, 0.0, 0.0), "red": (1.0, -1.0, -1.0)}
NOISE, BEYOND = ("noise 1", "noise 2", "noise 3"), "noise beyond [−1, 1]"
IMAGES = (*COLORS, *NOISE, BEYOND)
ATTRIBUTES = {"unit": "may be empty", "better": "higher or lower", "kind": "quality or fidelity"}


@dataclass
class MetricExample(Example):
    """A metric with its last images."""

    cls: type[ImageMetric]
    last: ImageBatch | None = None

    @property
    def size(self) -> str:
        if self.last is None:
            return ""
        count, _, height, width = self.last.images.shape
        tokens = "×".join(map(str, self.last.tokens.shape[1:]))
        return f"{count} image{'s' * (count > 1)} of {height}×{width} pixels and {tokens} tokens"

    @property
    def seeds(self) -> Sequence[int]:
        return self.last.seeds if self.last else ()

    @cached_property
    def metric(self) -> ImageMetric:
        """The metric itself."""
        return self.cls()

    def measure(self, names: Sequence[str], shape: tuple[int, tuple[int, ...]], references: Sequence[str] = ()) -> Any:
        """Return whatever the metric returns for images by name; default references are the images themselves."""
        self.last = images_of(names, shape, references)
        with torch.inference_mode():
            return self.metric.measure(self.last)

    def shapes(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return the shapes that the metric accepts, the smallest first. Raises Unsupported if it refuses all."""
        accepted, refusal = list[tuple[int, tuple[int, ...]]](), ""
        for shape in SHAPES:
            try:
                self.measure(NOISE[:1], shape)
                accepted.append(shape)
            except ValueError as error:
                refusal = str(error)
        if not accepted:
            raise Unsupported(f"It refuses images of every size that is tried: {refusal}")
        return accepted


def metric_example(name: str) -> MetricExample:
    """Return the example of a registered metric. Raises Unsupported for a metric of sets or costs."""
    cls = registry.metrics.get(name)
    if not issubclass(cls, ImageMetric):
        raise Unsupported(f"{name} is a metric of {'whole sets of images' if cls.per == 'set' else 'costs'}.",
                          remedy="Only metrics of single images can be checked; measure it in a run of a plan.")
    return MetricExample(cls)


def images_of(names: Sequence[str], shape: tuple[int, tuple[int, ...]], references: Sequence[str] = ()) -> ImageBatch:
    """Return images by name, with tokens, labels and seeds that follow from the name."""
    side, tokens = shape
    drawn = [torch.stack([_image(name, side) for name in row]) for row in (names, references or names)]
    fed = [torch.stack([_tokens(name, tokens) for name in row]) for row in (names, references or names)]
    seeds = [3 + IMAGES.index(name) for name in names]
    return ImageBatch(drawn[0], drawn[1], fed[0], fed[1], labels=[seed % 10 for seed in seeds], seeds=seeds)


def _image(name: str, side: int) -> Tensor:
    """Return a plain image or noise, (3, side, side)."""
    if name in COLORS:
        return torch.tensor(COLORS[name]).view(3, 1, 1).repeat(1, side, side)
    noise = torch.rand(3, side, side, generator=torch.Generator().manual_seed(IMAGES.index(name))) * 2 - 1
    return noise * 1.25 if name == BEYOND else noise


def _tokens(name: str, shape: tuple[int, ...]) -> Tensor:
    draws = torch.Generator().manual_seed(IMAGES.index(name))
    return torch.randint(0, 16, shape, generator=draws) if len(shape) == 1 else torch.randn(shape, generator=draws)


# -- the checks ---------------------------------------------------------------------------------------------------------
def attributes_are_set(example: MetricExample) -> Findings:
    """The class itself sets unit, direction and kind; an inherited value may be an oversight."""
    example.shapes()
    own = {name for base in example.cls.__mro__ if base not in ImageMetric.__mro__ for name in vars(base)}
    for name, choices in ATTRIBUTES.items():
        if name not in own:
            yield KitFinding(f"the class attribute {name} ({choices})", f"inherited from ImageMetric, {getattr(ImageMetric, name)!r}",
                             "the attributes of its class")


def values_are_valid(example: MetricExample) -> Findings:
    """Each image has one finite value within the declared range; unsupported shapes raise ValueError.

    Images may be plain, noisy or beyond [−1, 1], next to any reference.
    """
    accepted = example.shapes()
    for shape in accepted:
        names = IMAGES if shape == accepted[0] else ("black", NOISE[0])
        single = [((name,), (other,)) for name in names for other in dict.fromkeys((name, NOISE[0]))]
        for images, references in [*single, (NOISE[:2], ()), (names, ())]:
            fault, details = problem(example.measure(images, shape, references), len(images), example.cls.within)
            if fault:
                which = images[0] if len(images) == 1 else ""
                reference = f" with reference {references[0]}" if references and references != images else ""
                yield example.finding("a finite value of each image within its range", f"{fault}, {details}", note=which + reference)
                return


def values_are_the_same_in_any_batch(example: MetricExample) -> Findings:
    """An image has the same value again, alone, with others and in another order, to 1e-4."""
    shape, values = example.shapes()[0], dict[str, list[float]]()
    for names in (NOISE, NOISE[:1], NOISE[1:2], NOISE[::-1], NOISE):
        measured = example.measure(names, shape)
        if any(problem(measured, len(names), example.cls.within)):
            raise Unsupported("It has no valid values here.")
        for name, value in zip(names, measured.detach().double().tolist(), strict=True):
            values.setdefault(name, []).append(value)
    largest = max(abs(value) for each in values.values() for value in each)
    for name, each in values.items():
        if max(each) - min(each) > CLOSE * largest:
            furthest = max(each, key=lambda value, first=each[0]: abs(value - first))  # type: ignore[misc]
            yield example.finding(f"{each[0]:.9g}, as in the first batch of {len(NOISE)}", f"{furthest:.9g}", note=name)
            return


METRIC: tuple[Callable[[MetricExample], Findings], ...] = (attributes_are_set, values_are_valid, values_are_the_same_in_any_batch)
