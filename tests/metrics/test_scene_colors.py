"""Color consistency is perfect on real scenes, and each wrong color costs the region that has it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cachemark.metrics.base import ImageBatch
from cachemark.metrics.color_consistency import CLASSES, REGIONS, ColorConsistency, matching_colors
from cachemark.models.catalogue.next_token import TINY_DECODER
from cachemark.models.tiny.tokenizers import VQ_WEIGHTS
from cachemark.models.weights import packaged
from tools.train.scene import scenes

OBJECT, GROUND, LEFT, RIGHT = range(4)


def turned(image: Tensor) -> Tensor:
    """Every hue a third of the circle further: the channels change places."""
    return image.roll(1, -3)


def corrupt(images: Tensor, rows: slice, columns: slice = slice(0, 64)) -> Tensor:
    """Turn the hues of one rectangle."""
    out = images.clone()
    out[:, :, rows, columns] = turned(images[:, :, rows, columns])
    return out


@pytest.mark.parametrize("name", CLASSES)
def test_regions_of_real_scenes_with_any_object_match(name: str) -> None:
    answers = matching_colors(scenes(torch.full((50,), CLASSES.index(name)), 32).images)
    assert (answers.shape, answers.dtype) == ((50, 4), torch.bool)
    assert answers.float().mean(0).min() >= 0.98


def test_regions_of_reconstructions_match() -> None:
    vq = VQ_WEIGHTS.load(packaged(TINY_DECODER))
    with torch.inference_mode():
        images = vq.decode(vq.encode(scenes(100, 33).images))
    assert matching_colors(images).float().mean(0).min() >= 0.98


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


@pytest.mark.parametrize("value", [-1.0, 0.3, 1.0])
def test_gray_matches_nothing(value: float) -> None:
    assert not matching_colors(torch.full((2, 3, 64, 64), value)).any()


def test_values_beyond_the_range_are_clamped() -> None:
    images = scenes(50, 37).images
    assert torch.equal(matching_colors(images * 3), matching_colors((images * 3).clamp(-1, 1)))


@pytest.mark.parametrize("shape", [(3, 64, 64), (2, 3, 32, 32), (2, 1, 64, 64)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"needs images of shape \(B, 3, 64, 64\)"):
        matching_colors(torch.zeros(shape))
