"""The generated data: equal seeds give equal pictures, and a picture shows what its parameters say."""

from __future__ import annotations

import colorsys

import pytest
import torch

from cachemark.metrics.compute.scene_colors import CLASSES, FOOTER_ROWS, SWATCH_GROUND, SWATCH_OBJECT
from tools.train.scene import scenes, stream

GOLDEN_CLASSES = [2, 0, 4, 0]
GOLDEN_HUES = [0.490225, 0.338839, 0.674925, 0.833487]
GOLDEN_HORIZONS = [0.578579, 0.482913, 0.470485, 0.574018]

def far(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Distance of two hues around the circle."""
    return ((a - b + 0.5) % 1 - 0.5).abs()


def hue(pixel: torch.Tensor) -> float:
    return colorsys.rgb_to_hsv(*((pixel + 1) / 2).tolist())[0]


def test_equal_seeds_give_equal_scenes() -> None:
    first, two, other = scenes(6, 11), scenes(6, 11), scenes(6, 12)
    assert torch.equal(first.images, two.images)
    assert torch.equal(first.classes, two.classes)
    assert not torch.equal(first.images, other.images)


def test_the_data_version_pins_the_draws() -> None:
    scene = scenes(4, 2024)
    assert scene.classes.tolist() == GOLDEN_CLASSES, "the draws changed: raise scene.VERSION and train the bundled models anew"
    assert scene.object_hue.tolist() == pytest.approx(GOLDEN_HUES, abs=1e-5)
    assert scene.horizon.tolist() == pytest.approx(GOLDEN_HORIZONS, abs=1e-5)


@pytest.mark.parametrize("wrong", [[-1], [0, 10]])
def test_a_class_that_does_not_exist_is_refused(wrong: list[int]) -> None:
    with pytest.raises(ValueError, match=r"classes lie in 0\.\.9"):
        scenes(torch.tensor(wrong), 0)


def test_object_and_ground_never_share_a_hue() -> None:
    scene = scenes(500, 3)
    assert far(scene.object_hue, scene.ground_hue).min() > 0.11


def test_the_swatches_announce_and_the_footer_repeats() -> None:
    scene = scenes(20, 4)
    for image, first, second in zip(scene.images, scene.object_hue, scene.ground_hue, strict=True):
        for rows, columns, expected in ((*SWATCH_OBJECT, first), (*SWATCH_GROUND, second), (FOOTER_ROWS, slice(0, 16), second),
                                      (FOOTER_ROWS, slice(48, 64), first)):
            patch = image[:, rows, columns]
            assert patch.flatten(1).std(1).max() == pytest.approx(0, abs=1e-6)
            assert far(torch.tensor(hue(patch[:, 0, 0])), expected) < 1e-3


def test_every_class_has_a_shape_of_its_own() -> None:
    pictures = [scenes(torch.tensor([c]), 9).images[0] for c in range(len(CLASSES))]  # the same parameters, ten classes
    for i, a in enumerate(pictures):
        for b in pictures[:i]:
            assert ((a - b).abs().amax(0) > 0.3).sum() > 40


def test_streams_do_not_meet() -> None:
    seeds = {stream(seed, purpose, index) for seed in (0, 1) for purpose in ("a", "b") for index in range(50)}
    assert len(seeds) == 200
    assert all(0 <= s < 2**63 for s in seeds)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_draws_the_same_scenes() -> None:
    here, there = scenes(32, 7), scenes(32, 7, device="cuda")
    assert torch.equal(here.classes, there.classes.cpu())
    assert (here.images - there.images.cpu()).abs().max() < 1e-3
