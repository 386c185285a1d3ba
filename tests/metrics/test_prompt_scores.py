"""Prompt scores are right for images of a caption, and wrong on the axis of a fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cachemark.metrics.base import ImageBatch, MetricContext
from cachemark.metrics.caption_scores import CaptionScore
from cachemark.metrics.registry import image_metrics
from cachemark.models.tiny.captions import AXES, Asked, parsed
from cachemark.models.tiny.tokenizers import VQ_WEIGHTS
from cachemark.models.weights import packaged
from tools.train.caption_scene import caption_scenes

CAPTIONS = (
    "two red stars above blue stripes", "a green disc left of yellow dots", "three cyan crosses below magenta checks",
    "a yellow square right of red bars", "two magenta rings above green dots", "three blue triangles below cyan stripes",
)
LABELS = [*range(6)] * 8
METRICS = {name: cls for name, cls in image_metrics().items() if issubclass(cls, CaptionScore)}


def scores(images: Tensor, captions: tuple[str, ...] = CAPTIONS) -> dict[str, float]:
    """Return the mean of each metric over images of the captions in turn."""
    context, batch = MetricContext(prompts=captions), ImageBatch(images, images, images, images, LABELS, LABELS)
    return {name: float(cls().prepared(context).measure(batch).mean()) for name, cls in METRICS.items()}


def figures(scenes: list[Asked], captions: tuple[str, ...] = CAPTIONS) -> dict[str, float]:
    return scores(caption_scenes(scenes, 77).images, captions)


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


def test_pictures_of_other_captions_are_right_by_chance_alone() -> None:
    means = figures([parsed(CAPTIONS[(label + 1) % 6]) for label in LABELS])
    assert means["prompt_score"] == 0.0
    assert max(means.values()) < 0.5


def test_the_tokenizer_does_not_hide_what_a_picture_shows() -> None:
    """Its reconstructions are the best images of a model with these codes."""
    coder = VQ_WEIGHTS.load(packaged("tiny-vq.safetensors"))
    images = caption_scenes([parsed(CAPTIONS[label]) for label in LABELS], 78).images
    with torch.inference_mode():
        again = coder.decode(coder.encode(images))
    assert min(scores(again).values()) >= 0.9


def test_other_images_are_read_again() -> None:
    requests, metric = [parsed(CAPTIONS[label]) for label in LABELS], METRICS["prompt_score"]().prepared(MetricContext(prompts=CAPTIONS))
    right, wrong = caption_scenes(requests, 79).images, caption_scenes(requests[1:] + requests[:1], 79).images
    values = [metric.measure(ImageBatch(images, images, images, images, LABELS, LABELS)).mean() for images in (right, wrong, right)]
    assert [float(value) > 0.5 for value in values] == [True, False, True]
