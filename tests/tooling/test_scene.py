"""The generated data: equal seeds give equal pictures, and a picture shows what its parameters say."""

from __future__ import annotations

import colorsys
import hashlib
import math

import pytest
import torch
from scipy import ndimage
from torch import Tensor

from cachemark.metrics.color_consistency import FOOTER_ROWS, SWATCH_GROUND, SWATCH_OBJECT
from cachemark.models.tiny.captions import AXES, PLACES, parsed
from tools.train.caption_scene import VERSION, CaptionScene, caption_scenes, stream
from tools.train.scene import scenes
from tools.train.scene import stream as scene_stream

GOLDEN_CLASSES = [2, 0, 4, 0]
GOLDEN_HUES = [0.490225, 0.338839, 0.674925, 0.833487]
GOLDEN_HORIZONS = [0.578579, 0.482913, 0.470485, 0.574018]

def far(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Distance of two hues around the circle."""
    return ((a - b + 0.5) % 1 - 0.5).abs()


def hue(pixel: torch.Tensor) -> float:
    return colorsys.rgb_to_hsv(*((pixel + 1) / 2).tolist())[0]


def test_the_data_version_pins_the_draws() -> None:
    scene = scenes(4, 2024)
    assert scene.classes.tolist() == GOLDEN_CLASSES, "the draws changed: raise scene.VERSION and train the bundled models anew"
    assert scene.object_hue.tolist() == pytest.approx(GOLDEN_HUES, abs=1e-5)
    assert scene.horizon.tolist() == pytest.approx(GOLDEN_HORIZONS, abs=1e-5)


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_draws_the_same_scenes() -> None:
    here, there = scenes(32, 7), scenes(32, 7, device="cuda")
    assert torch.equal(here.classes, there.classes.cpu())
    assert (here.images - there.images.cpu()).abs().max() < 1e-3


@pytest.fixture(scope="module")
def drawn() -> CaptionScene:
    return caption_scenes(200, 11)


def hue_of(rgb: Tensor) -> float:
    """Hue in [0, 1) of a colour of three numbers."""
    red, green, blue = rgb.tolist()
    return math.atan2((green - blue) * math.sqrt(3) / 2, red - (green + blue) / 2) / (2 * math.pi) % 1


def ground_of(place: int) -> tuple[slice, slice]:
    """Rows and columns of the ground, as objects see it."""
    full, far, near = slice(64), slice(38, 64), slice(26)
    return {"above": (far, full), "below": (near, full), "left of": (full, far), "right of": (full, near)}[PLACES[place]]


def without_ground(image: Tensor, place: int) -> Tensor:
    """The image without its ground, which stands as white."""
    pixels = image.clone() / 2 + 0.5
    full, far, near = slice(64), slice(34, 64), slice(30)
    rows, columns = {"above": (far, full), "below": (near, full), "left of": (full, far), "right of": (full, near)}[PLACES[place]]
    pixels[:, rows, columns] = 1.0
    return pixels


def pieces(mask: Tensor) -> list[int]:
    """Sizes of the connected parts of a mask (64, 64)."""
    parts, count = ndimage.label(mask.numpy())
    return sorted(int((parts == number).sum()) for number in range(1, count + 1))


def test_objects_have_their_number_and_their_colour(drawn: CaptionScene) -> None:
    for i, image in enumerate(drawn.images):
        objects = without_ground(image, int(drawn.shown["position"][i]))
        saturated = (objects.amax(0) - objects.amin(0)) > 0.5 * objects.amax(0)
        sizes = pieces(saturated)
        assert len(sizes) == int(drawn.shown["count"][i]) + 1, i
        assert sizes[0] > 60, "an object is no speck"
        apart = (hue_of(objects[:, saturated].mean(1)) - float(drawn.shown["colour"][i]) / 6 + 0.5) % 1 - 0.5
        assert abs(apart) < 0.06, i


def test_the_ground_has_its_colour_and_its_texture(drawn: CaptionScene) -> None:
    by_texture: dict[int, list[tuple[float, float]]] = {}
    for i, image in enumerate(drawn.images):
        rows, columns = ground_of(int(drawn.shown["position"][i]))
        ground = image[:, rows, columns] / 2 + 0.5
        apart = (hue_of(ground.flatten(1).mean(1)) - float(drawn.shown["ground_colour"][i]) / 6 + 0.5) % 1 - 0.5
        assert abs(apart) < 0.06, i
        value = ground.amax(0)
        changes = float(value.diff(dim=0).abs().mean()), float(value.diff(dim=1).abs().mean())
        by_texture.setdefault(int(drawn.shown["texture"][i]), []).append(changes)
    stripes, bars, checks, dots = (torch.tensor(by_texture[i]).mean(0) for i in range(4))
    assert stripes[0] > 0.02 > 0.001 > stripes[1]
    assert bars[1] > 0.02 > 0.001 > bars[0]
    assert min(*checks, *dots) > 0.02
    assert checks.sum() > 1.3 * dots.sum(), "the edges of checks are sharp"


def test_captions_tell_what_is_shown_and_leave_out_what_they_may(drawn: CaptionScene) -> None:
    captions = [parsed(caption) for caption in drawn.captions(3)]
    for i, caption in enumerate(captions):
        for axis in AXES:
            assert getattr(caption, axis) in (None, int(drawn.shown[axis][i]))
    left_out = {axis: sum(getattr(caption, axis) is None for caption in captions) for axis in AXES}
    assert left_out["object"] == left_out["count"] == 0
    assert all(5 < left_out[axis] < 60 for axis in ("colour", "position", "texture", "ground_colour"))
    assert drawn.captions(3) != drawn.captions(4)


def test_a_seed_is_the_same_picture_for_good() -> None:
    """The weights were trained on these draws: other ones need another version."""
    choices = caption_scenes(64, stream(0, "pinned")).shown
    digest = hashlib.sha256(b"".join(choices[axis].numpy().tobytes() for axis in AXES)).hexdigest()
    assert (VERSION, digest[:16]) == ("captions-v1", "f2c5d207cc5bd748")
    assert stream(0, "pinned") != scene_stream(0, "pinned")
