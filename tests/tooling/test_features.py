"""Training of the feature network: faults that are what they claim to be, a run that continues, and a reference of new scenes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cachemark.core.errors import Unsupported
from cachemark.metrics.compute.distribution import distribution
from cachemark.metrics.compute.extractor import extractor_name
from cachemark.metrics.compute.image_features import ImageFeatures, RealImages
from cachemark.metrics.compute.scene_colors import matching_colors
from cachemark.models import checkpoints
from cachemark.models.tiny.tiny_features import HEADS, FeaturesConfig
from metrics.toys import drawn, reference
from tools.train.feature_network import FeaturesTask, attributes, corrupted, real_floor, real_scenes, write_reference
from tools.train.loops import TrainingRun, train
from tools.train.scene import scenes

SMALL = FeaturesConfig(width=16, squeezed=4, features=16)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def task(seed: int = 0) -> FeaturesTask:
    return FeaturesTask(seed, config=SMALL, batch=8)


def test_every_spoilt_picture_has_a_fault_and_the_rest_of_it_stays() -> None:
    images = scenes(256, 5).images
    bad = corrupted(images, generator())
    changed = (bad - images).abs().amax(1) > 0.05
    assert changed.flatten(1).any(1).float().mean() > 0.99
    assert changed.float().mean() < 0.7
    assert torch.equal(bad, corrupted(images, generator()))
    assert matching_colors(images).all()
    shares = matching_colors(bad).float().mean(0)
    assert ((shares > 0.2) & (shares < 0.95)).all(), "each region is corrupted now and then, and not always"


def test_the_attributes_are_those_of_the_scene() -> None:
    scene = scenes(200, 7)
    named = attributes(scene)
    assert set(named) == set(HEADS)
    for name, choices in HEADS.items():
        assert named[name].unique().tolist() == list(range(choices)), name
    assert (named["object_hue"] != named["ground_hue"]).all(), "a scene never gives both one hue"


def test_the_reference_is_small_belongs_to_its_weights_and_holds_new_scenes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.train.feature_network.HELD_OUT", 8)
    monkeypatch.setattr("tools.train.feature_network.CHUNK", 60)
    monkeypatch.setattr("tools.train.feature_network.FLOORS", (40, 60))
    weights = train(task(), TrainingRun(tmp_path, 1, threads=1))
    path = write_reference(weights, count=120)
    name = extractor_name(checkpoints.sha256(weights))
    reference = RealImages.load(path, name)
    assert path.name == "tiny-features.reference.safetensors"
    assert (reference.extractor, reference.count, len(reference.features)) == (name, 120, 120)
    again = distribution(ImageFeatures.of(real_scenes(120), name), reference, kid=False, isc_splits=1)
    assert again["fid"] == pytest.approx(0, abs=1e-3)
    first = load_file(path)
    write_reference(weights, count=120)
    assert all(torch.equal(tensor, first[key]) for key, tensor in load_file(path).items())
    assert not torch.equal(real_scenes(8), real_scenes(8, purpose="held out"))


def test_the_floor_is_the_fid_of_other_real_images() -> None:
    real = reference()
    floor = real_floor(drawn(500, 9), real, 200)
    assert floor.value == distribution(drawn(500, 9).first(200), real, kid=False, isc=False, prc=False)["fid"] > 0
    with pytest.raises(Unsupported, match="200 of 200 images are in the reference itself"):
        real_floor(real.image_features, real, 200)
    with pytest.raises(Unsupported, match="501 images are needed"):
        real_floor(drawn(500, 9), real, 501)
