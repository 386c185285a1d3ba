"""Captioned scenes: a picture shows what its caption asks for, judged from its pixels alone."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch
from torch import Tensor

from cachemark.models.tiny.captions import AXES, PLACES, Asked, parsed
from tools.train.caption_scene import VERSION, CaptionScene, caption_scenes, stream
from tools.train.scene import stream as scene_stream


@pytest.fixture(scope="module")
def drawn() -> CaptionScene:
    return caption_scenes(200, 11)


def hue(rgb: Tensor) -> float:
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
    remaining, sizes = {(int(a), int(b)) for a, b in mask.nonzero()}, []
    while remaining:
        todo, size = [remaining.pop()], 1
        while todo:
            row, column = todo.pop()
            for near in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
                if near in remaining:
                    remaining.remove(near)
                    todo.append(near)
                    size += 1
        sizes.append(size)
    return sorted(sizes)


def test_objects_have_their_number_and_their_colour(drawn: CaptionScene) -> None:
    for i, image in enumerate(drawn.images):
        objects = without_ground(image, int(drawn.shown["position"][i]))
        saturated = (objects.amax(0) - objects.amin(0)) > 0.5 * objects.amax(0)
        sizes = pieces(saturated)
        assert len(sizes) == int(drawn.shown["count"][i]) + 1, i
        assert sizes[0] > 60, "an object is no speck"
        apart = (hue(objects[:, saturated].mean(1)) - float(drawn.shown["colour"][i]) / 6 + 0.5) % 1 - 0.5
        assert abs(apart) < 0.06, i


def test_the_ground_has_its_colour_and_its_texture(drawn: CaptionScene) -> None:
    by_texture: dict[int, list[tuple[float, float]]] = {}
    for i, image in enumerate(drawn.images):
        rows, columns = ground_of(int(drawn.shown["position"][i]))
        ground = image[:, rows, columns] / 2 + 0.5
        apart = (hue(ground.flatten(1).mean(1)) - float(drawn.shown["ground_colour"][i]) / 6 + 0.5) % 1 - 0.5
        assert abs(apart) < 0.06, i
        value = ground.amax(0)
        changes = float(value.diff(dim=0).abs().mean()), float(value.diff(dim=1).abs().mean())
        by_texture.setdefault(int(drawn.shown["texture"][i]), []).append(changes)
    stripes, bars, checks, dots = (torch.tensor(by_texture[i]).mean(0) for i in range(4))
    assert stripes[0] > 0.02 > 0.001 > stripes[1]
    assert bars[1] > 0.02 > 0.001 > bars[0]
    assert min(*checks, *dots) > 0.02
    assert checks.sum() > 1.3 * dots.sum(), "the edges of checks are sharp"


def test_pictures_of_a_request_show_it_and_draw_the_rest() -> None:
    requests = [parsed("two red stars above blue stripes")] * 20
    scene = caption_scenes(requests, 5)
    assert {axis: of.unique().tolist() for axis, of in scene.shown.items()} == {
        "object": [3], "count": [1], "colour": [0], "position": [0], "texture": [0], "ground_colour": [4]}  # fmt: skip
    assert len({image.numpy().tobytes() for image in scene.images}) == 20
    free = caption_scenes([Asked(object=3, count=1)] * 40, 5).shown
    assert all(len(free[axis].unique()) > 1 for axis in AXES if axis not in ("object", "count"))


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
