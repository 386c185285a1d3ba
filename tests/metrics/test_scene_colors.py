"""Color consistency is perfect on real scenes, and each wrong color costs the region that has it."""

from dataclasses import replace

import pytest
import torch

from cachemark.metrics.base import ImageBatch, MetricContext
from cachemark.metrics.caption_scores import CaptionScore
from cachemark.metrics.color_consistency import REGIONS, ColorConsistency, matching_colors
from cachemark.metrics.registry import image_metrics
from cachemark.models.tiny.captions import AXES, Asked, parsed
from tools.train.caption_scene import caption_scenes
from tools.train.scene import scenes

OBJECT, GROUND, LEFT, RIGHT = range(4)


def turned(image: torch.Tensor) -> torch.Tensor:
    """Every hue a third of the circle further: the channels change places."""
    return image.roll(1, -3)


def corrupt(images: torch.Tensor, rows: slice, columns: slice = slice(0, 64)) -> torch.Tensor:
    """Turn the hues of one rectangle."""
    out = images.clone()
    out[:, :, rows, columns] = turned(images[:, :, rows, columns])
    return out


@pytest.mark.parametrize(("region", "wrong"), [
    ((slice(44, 60),), {GROUND}), ((slice(4, 44),), {OBJECT}), ((slice(60, 64), slice(0, 32)), {LEFT}),
    ((slice(60, 64), slice(32, 64)), {RIGHT}), ((slice(0, 4), slice(0, 32)), {OBJECT, RIGHT}),
    ((slice(0, 4), slice(32, 64)), {GROUND, LEFT}),
], ids=["ground", "object", "footer left", "footer right", "swatch of the object", "swatch of the ground"])  # fmt: skip
def test_a_wrong_color_costs_its_own_region_only(region: tuple[slice, ...], wrong: set[int]) -> None:
    shares = matching_colors(corrupt(scenes(100, 34).images, *region)).float().mean(0)
    for question, share in enumerate(shares.tolist()):
        assert share <= 0.02 if question in wrong else share >= 0.98, REGIONS[question]


def test_the_value_is_the_fraction_of_matching_regions_whatever_the_hues() -> None:
    images = scenes(50, 35).images
    for shown, value in ((images, 1.0), (turned(images), 1.0), (corrupt(images, slice(44, 60)), 0.75)):
        assert ColorConsistency().measure(ImageBatch(shown, shown, shown, shown, [0] * 50, [0] * 50)).tolist() == [value] * 50


# -- prompt scores are right for images of a caption, and wrong on the axis of a fault --
CAPTIONS = (
    "two red stars above blue stripes", "a green disc left of yellow dots", "three cyan crosses below magenta checks",
    "a yellow square right of red bars", "two magenta rings above green dots", "three blue triangles below cyan stripes",
)
LABELS = [*range(6)] * 8
METRICS = {name: cls for name, cls in image_metrics().items() if issubclass(cls, CaptionScore)}


def figures(asked: list[Asked], captions: tuple[str, ...] = CAPTIONS) -> dict[str, float]:
    """Return the mean of each metric over images of these scenes, which were asked for by the captions in turn."""
    images = caption_scenes(asked, 77).images
    context, batch = MetricContext(prompts=captions), ImageBatch(images, images, images, images, LABELS, LABELS)
    return {name: float(cls().prepared(context).measure(batch).mean()) for name, cls in METRICS.items()}


@pytest.mark.parametrize("axis", AXES)
def test_a_fault_on_one_axis_shows_there_and_nowhere_else(axis: str) -> None:
    requests = [parsed(CAPTIONS[label]) for label in LABELS]
    means = figures([replace(request, **{axis: (getattr(request, axis) + 1) % len(AXES[axis])}) for request in requests])
    affected = {name for name, cls in METRICS.items() if axis in cls.axes}
    assert {name for name, value in means.items() if value <= 0.05} == affected
    assert min(value for name, value in means.items() if name not in affected) >= 0.95


def test_pictures_of_captions_are_right_and_what_a_caption_leaves_out_may_look_as_it_likes() -> None:
    bare = tuple(replace(parsed(caption), colour=None, ground_colour=None).caption for caption in CAPTIONS)
    for captions in (CAPTIONS, bare):
        assert min(figures([parsed(captions[label]) for label in LABELS], captions).values()) >= 0.95
