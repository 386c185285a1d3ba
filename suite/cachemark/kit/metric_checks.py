"""Checks of a metric of single images. Each takes an example and yields what deviates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..core import registry
from ..core.errors import Unsupported
from ..metrics.base import ImageBatch, ImageMetric, problem
from .common import Findings, settings_restored
from .findings import Example, KitFinding

CLOSE = 1e-4  # of values, relative to the largest
SHAPES = (  # sides of images and shapes of their tokens, as the models here have them, the smallest first
    (16, (16,)), (64, (64,)), (64, (256,)), (64, (256, 16)), (256, (256,)), (256, (256, 16)),
)  # fmt: skip
BEYOND = 1.25  # largest value of an unclamped image
DRAWINGS, PLAIN = ("drawing 1", "drawing 2", "drawing 3"), ("black", "white", "gray", "red")
IMAGES = (*PLAIN, *DRAWINGS, "noise", "a drawing beyond [−1, 1]")
ATTRIBUTES = {"unit": "may be empty", "better": "higher or lower", "kind": "quality or fidelity"}


@dataclass
class MetricExample(Example):
    """A metric with its last images, and the settings of torch that it changed."""

    cls: type[ImageMetric]
    last: ImageBatch | None = None
    changes: list[str] = field(default_factory=list)

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

    @cached_property
    def shape(self) -> tuple[int, tuple[int, ...]]:
        """The smallest shape that the metric accepts. Raises Unsupported if it refuses all."""
        refusal = ""
        for shape in SHAPES:
            try:
                self.measure(images_of(DRAWINGS[:1], shape))
            except ValueError as error:
                refusal = str(error)
            else:
                return shape
        raise Unsupported(f"It refuses images of every size that is tried: {refusal}")

    def measure(self, batch: ImageBatch) -> Any:
        """Return whatever the metric returns for some images."""
        self.last = batch
        try:
            with settings_restored() as changes, torch.inference_mode():
                return self.metric.measure(batch)
        finally:
            self.changes += changes

    def values(self, batch: ImageBatch) -> Tensor:
        """Return the values of some images, (B,) fp64. Raises Unsupported for invalid values."""
        values = self.measure(batch)
        fault, details = problem(values, len(batch.images), self.cls.within)
        if fault:
            raise Unsupported(f"It has no valid values here: {fault}, {details}.")
        return torch.as_tensor(values.detach().double().tolist(), dtype=torch.float64)

    def images(self, names: Sequence[str] = DRAWINGS, references: Sequence[str] = ()) -> ImageBatch:
        """Return images by name in the smallest shape; default references are the images themselves."""
        return images_of(names, self.shape, references)


def metric_example(name: str) -> MetricExample:
    """Return the example of a registered metric. Raises Unsupported for a metric of sets or costs."""
    cls = registry.metrics.get(name)
    if not issubclass(cls, ImageMetric):
        raise Unsupported(f"{name} is a metric of {'whole sets of images' if cls.per == 'set' else 'costs'}.",
                          remedy="Only metrics of single images can be checked; measure it in a run of a plan.")
    return MetricExample(cls)


# -- images -------------------------------------------------------------------------------------------------------------
def images_of(names: Sequence[str], shape: tuple[int, tuple[int, ...]], references: Sequence[str] = ()) -> ImageBatch:
    """Return images by name, with tokens, labels and seeds that follow from the name."""
    side, tokens = shape
    drawn = [torch.stack([_image(name, side) for name in row]) for row in (names, references or names)]
    fed = [torch.stack([_tokens(name, tokens) for name in row]) for row in (names, references or names)]
    numbers = [IMAGES.index(name) for name in names]
    labels, seeds = [number % 10 for number in numbers], [3 + number for number in numbers]
    return ImageBatch(drawn[0], drawn[1], fed[0], fed[1], labels=labels, seeds=seeds)


def _image(name: str, side: int) -> Tensor:
    """Return an image (3, side, side): plain, noise, or a disc on a gradient."""
    if name in PLAIN:
        color = {"black": (-1, -1, -1), "white": (1, 1, 1), "gray": (0, 0, 0), "red": (1, -1, -1)}[name]
        return torch.tensor(color, dtype=torch.float32).view(3, 1, 1).repeat(1, side, side)
    draws = torch.Generator().manual_seed(IMAGES.index(name))
    if name == "noise":
        return torch.rand(3, side, side, generator=draws) * 2 - 1
    across, down = torch.meshgrid(*[torch.linspace(-1, 1, side)] * 2, indexing="xy")
    ground, ink = (torch.rand(3, 1, 1, generator=draws) * 2 - 1 for _ in range(2))
    center = torch.rand(2, generator=draws) - 0.5
    disc = (across - center[0]).square() + (down - center[1]).square() < 0.2
    image = torch.where(disc, ink, (ground + across * 0.5 + down * 0.2).clamp(-1, 1))
    return image if name in DRAWINGS else image / image.abs().max() * BEYOND


def _tokens(name: str, shape: tuple[int, ...]) -> Tensor:
    draws = torch.Generator().manual_seed(IMAGES.index(name))
    return torch.randint(0, 16, shape, generator=draws) if len(shape) == 1 else torch.randn(shape, generator=draws)


def _differences(example: MetricExample, expected: Tensor, actual: Tensor, whose: str, tolerance: float = CLOSE) -> Findings:
    """Yield the first image whose value differs by more than ``tolerance`` times the largest."""
    scale = max(float(expected.abs().max()), float(actual.abs().max()))
    for place, (first, second) in enumerate(zip(expected.tolist(), actual.tolist(), strict=True)):
        if abs(first - second) > tolerance * scale:
            yield example.finding(f"{first:.9g} for image {place} of {len(expected)}, {whose}", f"{second:.9g}")
            return


# -- the checks ---------------------------------------------------------------------------------------------------------
def attributes_are_set(example: MetricExample) -> Findings:
    """The class itself sets unit, direction and kind; an inherited value may be an oversight."""
    example.measure(example.images())
    own = {name for base in example.cls.__mro__ if base not in ImageMetric.__mro__ for name in vars(base)}
    for name, choices in ATTRIBUTES.items():
        if name not in own:
            yield KitFinding(f"the class attribute {name} ({choices})", f"inherited from ImageMetric, {getattr(ImageMetric, name)!r}",
                             "the attributes of its class")


def values_are_valid(example: MetricExample) -> Findings:
    """Each image has one finite value within the declared range; unsupported shapes raise ValueError.

    Images may be plain, noisy or beyond [−1, 1], next to any reference.
    """
    smallest = example.shape
    for shape in SHAPES[SHAPES.index(smallest) :]:
        try:
            example.measure(images_of(DRAWINGS[:1], shape))
        except ValueError:
            continue
        names = IMAGES if shape == smallest else (PLAIN[0], DRAWINGS[0])
        single = [((name,), (other,)) for name in names for other in dict.fromkeys((name, DRAWINGS[0]))]
        for images, references in [*single, (DRAWINGS[:2], ()), (names, ())]:
            fault, details = problem(example.measure(images_of(images, shape, references)), len(images), example.cls.within)
            if fault:
                which = images[0] if len(images) == 1 else ""
                reference = f" with reference {references[0]}" if references and references != images else ""
                yield example.finding("a finite value of each image within its range", f"{fault}, {details}", note=which + reference)
                return


def second_measurement_repeats(example: MetricExample) -> Findings:
    """Images have the same values again, after other images and with other random numbers of torch.

    The same bits if the metric declares itself deterministic, else to 1e-4 of the largest.
    """
    batch = example.images()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        first = example.values(batch)
        example.measure(example.images(("noise", "white")))
        torch.manual_seed(321)
        second = example.values(batch)
    yield from _differences(example, first, second, "as the first time", 0.0 if example.cls.deterministic else CLOSE)


def values_are_the_same_in_any_batch(example: MetricExample) -> Findings:
    """An image has the same value alone, with other images and in another order, to 1e-4 of the largest."""
    names = *DRAWINGS, "noise"
    values = example.values(example.images(names))
    for places in ([0], [1], [2, 0], [3, 2, 1, 0]):
        part = example.values(example.images([names[at] for at in places]))
        if findings := list(_differences(example, values[places], part, f"as in a batch of {len(names)}")):
            yield findings[0]
            return


def kind_and_direction_are_right(example: MetricExample) -> Findings:
    """Quality ignores the reference; fidelity is best for the reference and worse for another image."""
    own_value = float(example.values(example.images(DRAWINGS[:1]))[0])
    quality, better = example.cls.kind == "quality", example.cls.better
    worse, tolerance = 0, 0.0 if example.cls.deterministic and quality else CLOSE
    for name in (*DRAWINGS[1:], *PLAIN, "noise"):
        batch = example.images(DRAWINGS[:1], (name,)) if quality else example.images((name,), DRAWINGS[:1])
        value = float(example.values(batch)[0])
        gain = value - own_value if better == "higher" else own_value - value
        if (abs(gain) if quality else gain) > tolerance * max(abs(value), abs(own_value)):
            if quality:
                yield example.finding(f"{own_value:.9g} for any reference, or kind = \"fidelity\"", f"{value:.9g} with reference {name}")
            else:
                expected = f"no value better ({better}) than {own_value:.9g}, the value of the reference itself"
                yield example.finding(expected, f"{value:.9g}", note=name)
            return
        worse += gain < 0
    if not quality and not worse:
        yield example.finding("a worse value than the reference's for some other image", f"{own_value:.9g} for all of them")


def inputs_are_unchanged(example: MetricExample) -> Findings:
    """It does not write into its input, which other metrics get too."""
    batch = example.images(("a drawing beyond [−1, 1]", *DRAWINGS), ("noise", *DRAWINGS))
    before = deepcopy(batch)
    example.measure(batch)
    for name in ("images", "reference", "tokens", "reference_tokens"):
        old, new = getattr(before, name), getattr(batch, name)
        if old.shape != new.shape or not torch.equal(old, new):
            yield example.finding(f"unchanged {name}", "different ones")
    if (before.labels, before.seeds) != (batch.labels, batch.seeds):
        yield example.finding("unchanged labels and seeds", "different ones")


def settings_are_unchanged(example: MetricExample) -> Findings:
    """It changes no setting of torch, such as TF32 or the number of threads."""
    example.measure(example.images())
    if example.changes:
        yield example.finding("unchanged settings of torch", "; ".join(example.changes))


METRIC: tuple[Callable[[MetricExample], Findings], ...] = (
    attributes_are_set, values_are_valid, second_measurement_repeats, values_are_the_same_in_any_batch,
    kind_and_direction_are_right, inputs_are_unchanged, settings_are_unchanged,
)
