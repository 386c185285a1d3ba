"""Features do not depend on batches or files, and damaged files are refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.metrics.compute.extractor import Extractor
from cachemark.metrics.compute.image_features import ImageFeatures
from cachemark.models import checkpoints
from cachemark.models.tiny.networks import FEATURE_WEIGHTS
from cachemark.models.weights import packaged
from metrics.toys import SIZE, noise, toy
from support.later import later
from tools.train.scene import scenes

later("torch_fidelity")


@pytest.fixture(scope="module")
def extractor() -> Extractor:
    return toy()


def same(first: ImageFeatures, other: ImageFeatures) -> bool:
    return torch.equal(first.features, other.features) and torch.equal(first.logits, other.logits)


# ------------------------------------------------------------------------------------------------ parts

@pytest.mark.parametrize("sizes", [(50,), (1, 49), (16, 16, 18), (7,) * 7 + (1,), (33, 17)])
def test_the_way_images_are_cut_changes_no_bit(sizes: tuple[int, ...], extractor: Extractor) -> None:
    """The toy's last feature is the batch size, so a smaller batch would show."""
    images = noise(50)
    at_once, parts = ImageFeatures.of(images, extractor, batch=16), images.split(sizes)
    assert same(ImageFeatures.of(iter(parts), extractor, batch=16), at_once)
    assert same(ImageFeatures.joined([ImageFeatures.of(part, extractor, batch=16) for part in parts]), at_once)
    assert at_once.features[:, -1].tolist() == [16] * 50
    assert not same(ImageFeatures.of(images, extractor, batch=10), at_once), "the toy does show it"


def test_the_network_of_the_procedural_scenes_rounds_alike_in_parts() -> None:
    path = packaged("tiny-features.safetensors")
    bundled, images = Extractor(checkpoints.sha256(path), partial(FEATURE_WEIGHTS.load, path)), scenes(41, 3).images
    at_once = ImageFeatures.of(images, bundled, batch=16)
    assert same(ImageFeatures.joined([ImageFeatures.of(part, bundled, batch=16) for part in images.split((5, 30, 6))]), at_once)
    for batch in (1, 64):
        other = ImageFeatures.of(images, bundled, batch=batch)
        assert torch.allclose(other.features, at_once.features, atol=1e-4, rtol=0)
    assert not torch.allclose(ImageFeatures.of(images.flip(0), bundled, batch=16).features, at_once.features, atol=1e-4, rtol=0)


# ------------------------------------------------------------------------------------------------ files

def test_a_file_holds_everything_exactly_and_their_extractor(extractor: Extractor, tmp_path: Path) -> None:
    features, path = ImageFeatures.of(noise(9), extractor), tmp_path / "f.safetensors"
    features.save(path)
    again = ImageFeatures.load(path, extractor)
    assert again
    assert same(again, features)
    assert ImageFeatures.load(path, toy("6")) is ImageFeatures.load(tmp_path / "none", extractor) is None
    with pytest.raises(BadCheckpoint, match=f"cachemark-8.*not of '{extractor.name}'"):
        ImageFeatures.joined([features, ImageFeatures.of(noise(4), toy("8"))])


def test_a_damaged_file_is_none(extractor: Extractor, tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    ImageFeatures.of(noise(4), extractor).save(path)
    data = path.read_bytes()
    metadata = {"cachemark": json.dumps({"model": "seen", "extractor": extractor.name})}
    uneven = save({"features": torch.zeros(3, 2), "logits": torch.zeros(4, 2)}, metadata)
    unnamed = save({"features": torch.zeros(3, 2), "logits": torch.zeros(3, 2)})
    short = save({"features": torch.zeros(3, 2)}, metadata)
    for bad in (b"", data[:4], data[:60], data[:-1], b"x" * 200, uneven, unnamed, short):
        path.write_bytes(bad)
        assert ImageFeatures.load(path, extractor) is None


# ------------------------------------------------------------------------------------------------ wrong input


def test_no_image_and_images_of_two_sizes_are_refused(extractor: Extractor) -> None:
    with pytest.raises(Unsupported, match="The stream contains no images"):
        ImageFeatures.of([], extractor)
    with pytest.raises(Unsupported, match=r"Image 3 is \(3, 8, 8\), earlier ones are \(3, 16, 16\)"):
        ImageFeatures.of([noise(3), noise(3)[..., :8, :8]], extractor)
    with pytest.raises(Unsupported, match=r"tensor of shape \(0, 3, 16, 16\)"):
        ImageFeatures.of(torch.zeros(0, 3, SIZE, SIZE), extractor)
