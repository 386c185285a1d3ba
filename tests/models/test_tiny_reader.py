"""The network that reads what pictures of the caption world show: what it accepts, and that it reads new ones rightly."""

from __future__ import annotations

import pytest
import torch

from cachemark.core.errors import BadCheckpoint
from cachemark.models.tiny.captions import AXES
from cachemark.models.tiny.tiny_reader import TinyReader, load
from cachemark.models.weights import packaged
from tools.train.caption_scene import caption_scenes


@pytest.fixture(scope="module")
def reader() -> TinyReader:
    return load(packaged("tiny-reader.safetensors"))


def test_it_reads_new_pictures_and_bytes_like_numbers(reader: TinyReader) -> None:
    scene = caption_scenes(200, 987)
    levels = ((scene.images + 1) * 127.5).round().byte()
    read, of_bytes = reader.read(scene.images), reader.read(levels)
    for axis, choices in AXES.items():
        assert (read[axis] == scene.shown[axis]).float().mean() >= 0.95, axis
        assert torch.equal(read[axis], of_bytes[axis])
        assert reader(scene.images[:2])[axis].shape == (2, len(choices))


def test_other_shapes_and_other_weights_are_refused(reader: TinyReader) -> None:
    with pytest.raises(ValueError, match=r"tiny-reader needs images of shape \(B, 3, 64, 64\), got \(2, 3, 32, 32\)"):
        reader(torch.zeros(2, 3, 32, 32))
    with pytest.raises(BadCheckpoint, match="holds no tiny-reader weights: it says it is 'tiny-features'"):
        load(packaged("tiny-features.safetensors"))
