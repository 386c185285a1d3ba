"""Quality values of sets, and features, which depend neither on batches nor on files. torch-fidelity's values: test_inception.py."""

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.metrics.compute.distribution import distribution
from cachemark.metrics.compute.extractor import Extractor
from cachemark.metrics.compute.image_features import ImageFeatures, RealImages
from cachemark.models.tiny.networks import FEATURE_WEIGHTS
from cachemark.models.weights import packaged
from metrics.toys import SIZE, noise, toy
from support.later import later
from tools.train.scene import scenes

later("torch_fidelity")
FEW = {"kid_subset_size": 48, "kid_subsets": 10, "isc_splits": 2}


@pytest.fixture(scope="module")
def extractor() -> Extractor:
    weights = packaged("tiny-features.safetensors")
    return Extractor(hashlib.sha256(weights.read_bytes()).hexdigest(), partial(FEATURE_WEIGHTS.load, weights))


@pytest.fixture(scope="module")
def fake() -> Tensor:
    return scenes(64, 12).images * 0.9


@pytest.fixture(scope="module")
def reference(extractor: Extractor) -> RealImages:
    return RealImages.of(ImageFeatures.of(scenes(96, 11).images, extractor))


@pytest.fixture(autouse=True)
def _no_cache_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A score must not come from, or go to, the cache of the user."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch-home"))
    yield
    assert not (tmp_path / "torch-home").exists()


def test_a_saved_reference_gives_the_fid_of_all_images(reference: RealImages, extractor: Extractor, fake: Tensor, tmp_path: Path) -> None:
    reference.save(tmp_path / "r.safetensors", keep=50)
    loaded = RealImages.load(tmp_path / "r.safetensors", extractor.name)
    ours, unsaved = (distribution(ImageFeatures.of(fake, extractor), r, **FEW) for r in (loaded, reference))
    assert loaded.count == 96
    assert ours["fid"] == unsaved["fid"], "the statistics are stored as torch-fidelity computes them"
    assert (len(loaded.features), len(loaded.logits)) == (50, 50)
    assert torch.allclose(loaded.features, reference.features[:50], atol=0, rtol=1e-3)


def test_too_few_images_and_what_cannot_be_compared(reference: RealImages, fake: Tensor, extractor: Extractor, tmp_path: Path) -> None:
    other = toy()
    reference.save(tmp_path / "r.safetensors", keep=50)
    with pytest.raises(BadCheckpoint, match=f"{extractor.name}.*{other.name}"):
        RealImages.load(tmp_path / "r.safetensors", other.name)
    with pytest.raises(BadCheckpoint, match=f"{extractor.name}.*{other.name}"):
        distribution(ImageFeatures.of(fake[:2], other), reference, **FEW)
    spoilt = fake.clone()
    spoilt[7, 1, 2, 3], spoilt[9, 0, 0, 0] = torch.nan, torch.inf
    with pytest.raises(Unsupported, match=r"2 of 64 images contain NaN or infinity; the first has index 7"):
        distribution(ImageFeatures.of(spoilt, extractor), reference, **FEW)
    with pytest.raises(Unsupported, match="The stream contains no images"):
        ImageFeatures.of([], TOY)
    with pytest.raises(Unsupported, match=r"Image 3 is \(3, 8, 8\), earlier ones are \(3, 16, 16\)"):
        ImageFeatures.of([noise(3), noise(3)[..., :8, :8]], TOY)
    with pytest.raises(Unsupported, match=r"tensor of shape \(0, 3, 16, 16\)"):
        ImageFeatures.of(torch.zeros(0, 3, SIZE, SIZE), TOY)
    for count, options, words in (
        (64, {}, r"KID needs at least 1000 images \(kid_subset_size\); there are 64 generated"),
        (64, {**FEW, "kid_subset_size": 80}, "KID needs at least 80 images"),
        (64, {**FEW, "isc_splits": 65}, r"Inception score needs at least 65 images \(isc_splits\)"),
        (3, {"kid": False, "isc_splits": 2}, r"Precision and recall need at least 4 images \(prc_neighborhood \+ 1\); "
         r"there are 3 generated and 96 real ones\."),
        (1, {"kid": False, "isc": False, "prc": False}, "FID needs at least 2 images"),
        (0, FEW, "got a tensor of shape"),
    ):
        with pytest.raises(Unsupported, match=words):
            distribution(ImageFeatures.of(fake[:count], extractor), reference, **options)


TOY = toy()


def same(first: ImageFeatures, other: ImageFeatures) -> bool:
    return torch.equal(first.features, other.features) and torch.equal(first.logits, other.logits)


@pytest.mark.parametrize("sizes", [(50,), (1, 49), (16, 16, 18), (7,) * 7 + (1,), (33, 17)])
def test_the_way_images_are_cut_changes_no_bit(sizes: tuple[int, ...]) -> None:
    """The toy's last feature is the batch size, so a smaller batch would show."""
    images = noise(50)
    at_once, parts = ImageFeatures.of(images, TOY, batch=16), images.split(sizes)
    assert same(ImageFeatures.of(iter(parts), TOY, batch=16), at_once)
    assert same(ImageFeatures.joined([ImageFeatures.of(part, TOY, batch=16) for part in parts]), at_once)
    assert at_once.features[:, -1].tolist() == [16] * 50
    assert not same(ImageFeatures.of(images, TOY, batch=10), at_once), "the toy does show it"


def test_a_file_holds_everything_exactly_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    features, path = ImageFeatures.of(noise(9), TOY), tmp_path / "f.safetensors"
    features.save(path)
    assert same(ImageFeatures.load(path, TOY), features)
    assert ImageFeatures.load(path, toy("6")) is ImageFeatures.load(tmp_path / "none", TOY) is None
    with pytest.raises(BadCheckpoint, match=f"cachemark-8.*not of '{TOY.name}'"):
        ImageFeatures.joined([features, ImageFeatures.of(noise(4), toy("8"))])
    data = path.read_bytes()
    metadata = {"cachemark": json.dumps({"model": "seen", "extractor": TOY.name})}
    uneven = save({"features": torch.zeros(3, 2), "logits": torch.zeros(4, 2)}, metadata)
    unnamed = save({"features": torch.zeros(3, 2), "logits": torch.zeros(3, 2)})
    short = save({"features": torch.zeros(3, 2)}, metadata)
    for bad in (b"", data[:4], data[:60], data[:-1], b"x" * 200, uneven, unnamed, short):
        path.write_bytes(bad)
        assert ImageFeatures.load(path, TOY) is None
