"""Presets of Inception v3: torch-fidelity's values, and an error for every missing or damaged file."""

import hashlib
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cachemark.core.errors import BadCheckpoint
from cachemark.metrics.compute import presets, sample_batches
from cachemark.metrics.compute.distribution import distribution
from cachemark.metrics.compute.image_features import ImageFeatures
from cachemark.metrics.compute.inception import inception_extractor
from metrics.toys import png_files
from support.later import later

torch_fidelity = later("torch_fidelity")
FEW: dict[str, Any] = {"kid_subset_size": 4, "kid_subsets": 4, "isc_splits": 2}
SIDE, REAL, FAKE = 256, 5, 4


def pictures(count: int, seed: int, side: int = SIDE) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 6, 6, generator=draws) * 255
    return torch.nn.functional.interpolate(coarse, size=(side, side), mode="bilinear").to(torch.uint8)


LAST = tuple(f"Mixed_7c.branch{name}.conv" for name in ("1x1", "3x3_2a", "3x3_2b", "3x3dbl_3a", "3x3dbl_3b", "_pool"))


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random weights with the names and shapes of the official file; most features are zero, so that FID is fast."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    class Unfilled(FeatureExtractorInceptionV3):
        def load_state_dict(self, *_: Any, **__: Any) -> None:
            return None

    nothing, draws = io.BytesIO(), torch.Generator().manual_seed(seed)
    torch.save({}, nothing)
    nothing.seek(0)
    tensors = Unfilled("unfilled", ["2048"], feature_extractor_weights_path=nothing).state_dict()
    for name, tensor in tensors.items():
        if tensor.dim() > 1:
            tensor.normal_(0, (2 / tensor[0].numel()) ** 0.5, generator=draws)
        if name.startswith(LAST):
            tensor[torch.arange(len(tensor)) % 16 > 0] = 0
    return dict(tensors)


@dataclass(frozen=True)
class Published:
    """Small files in the published formats, and torch-fidelity's values of the same images."""

    weights: Path
    batch: Path
    scores: dict[str, float]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    home = tmp_path_factory.mktemp("published")
    torch.save(state(), home / "inception.pth", _use_new_zipfile_serialization=False)  # the format of the published file
    scores = torch_fidelity.calculate_metrics(
        input1=png_files(pictures(FAKE, 1), home / "fake"), input2=png_files(pictures(REAL, 2), home / "real"), input2_cache_name="real",
        feature_extractor="inception-v3-compat", feature_extractor_weights_path=str(home / "inception.pth"), cache_root=str(home),
        fid=True, kid=True, isc=True, prc=True, cuda=False, verbose=False, save_cpu_ram=True, batch_size=2, **FEW,
    )
    statistics = torch.load(home / "real-inception-v3-compat-stat-fid-2048.pt", weights_only=False)
    images = pictures(REAL, 2).permute(0, 2, 3, 1).numpy()
    np.savez(home / "batch.npz", arr_0=images, arr_1=np.arange(REAL), mu_s=np.zeros(3), **statistics)
    return Published(home / "inception.pth", home / "batch.npz", scores)


@pytest.fixture(autouse=True)
def _nothing_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch-home"))
    monkeypatch.setattr("torch.hub.download_url_to_file", lambda *_, **__: pytest.fail("a download was attempted"))


@pytest.fixture(scope="module")
def preset(published: Published) -> presets.Preset:
    return presets.preset("adm", weights=published.weights, reference=published.batch, batch=2)


@pytest.fixture(scope="module")
def generated(preset: presets.Preset) -> ImageFeatures:
    return preset.extract(pictures(FAKE, 1), batch=2)


def test_values_are_those_of_torch_fidelity_and_images_are_resized_before_they_become_bytes(
    published: Published, preset: presets.Preset, generated: ImageFeatures, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FID uses the statistics in the file, not those of its images: it follows a mean that is moved."""
    moved = preset.reference.mean.clone()
    moved[0] += 3.0
    offset = float(generated.features[:, 0].mean() - preset.reference.mean[0])
    values = distribution(generated, replace(preset.reference, mean=moved), **{**preset.options, **FEW, "isc_split_size": 0})
    values["fid"] -= 9 - 6 * offset
    names = {"fid": "frechet_inception_distance", "kid": "kernel_inception_distance_mean", "isc": "inception_score_mean",
             "precision": "precision", "recall": "recall"}  # fmt: skip
    for name, key in names.items():
        assert values[name] == pytest.approx(published.scores[key], rel=1e-3), name
    parts: list[torch.Tensor] = []
    monkeypatch.setattr(ImageFeatures, "of", lambda images, *_, **__: parts.extend(images))
    large = torch.rand(2, 3, 384, 384, generator=torch.Generator().manual_seed(0)) * 2.4 - 1.2
    preset.extract(large)
    assert torch.equal(parts[0], torch.nn.functional.interpolate(large, size=(256, 256), mode="bicubic", antialias=False))
    fitting = pictures(2, 0)
    preset.extract([fitting[:1], fitting[1:]])
    assert torch.equal(torch.cat(parts[1:]), fitting)


def test_coco_uses_only_the_images_of_its_file(published: Published, tmp_path: Path) -> None:
    np.savez(tmp_path / "coco.npz", arr_0=pictures(2, 2).permute(0, 2, 3, 1).numpy())
    coco = presets.preset("coco", weights=published.weights, reference=tmp_path / "coco.npz", batch=2)
    assert coco.reference.count == 2
    fingerprint = sample_batches.SampleBatch(tmp_path / "coco.npz").fingerprint
    assert presets.identity_of("coco", published.weights, tmp_path / "coco.npz") == {**coco.identity, "reference": fingerprint}
    assert coco.extractor.name == f"inception-v3-compat-{hashlib.sha256(published.weights.read_bytes()).hexdigest()[:12]}"
    missing = presets.identity_of("coco", published.weights, tmp_path / "none.npz")["missing"]
    assert missing.startswith("not measured: needs real images of COCO in an npz file (")
    assert "docs/reference/quality.md" in missing
    assert "needs the weights of Inception v3" in presets.identity_of("coco", "", tmp_path / "coco.npz")["missing"]


def test_damaged_and_other_weights_are_refused(published: Published, tmp_path: Path) -> None:
    """And a file runs no code."""
    class Trap:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return (Path.touch, (tmp_path / "sprung",))

    path, content = tmp_path / "other.pth", published.weights.read_bytes()
    for keep in (0, len(content) // 2, len(content) - 5):
        path.write_bytes(content[:keep])
        with pytest.raises(BadCheckpoint, match="is not a weights file, or a damaged one"):
            inception_extractor(path)
    for state, words in (({"Conv2d_1a_3x3.conv.weight": torch.zeros(3)}, r"does not fit torch-fidelity's inception-v3-compat: .*Missing"),
                         ([torch.zeros(3)], "contains no tensors by name"), ({"x": Trap()}, "damaged one: UnpicklingError")):
        torch.save(state, path)
        with pytest.raises(BadCheckpoint, match=words):
            inception_extractor(path)
    assert not (tmp_path / "sprung").exists()


def archive(folder: Path, **arrays: Any) -> Path:
    """A small reference batch, some of whose arrays are others, or None to leave them out."""
    np.savez(folder / "b.npz", **{name: array for name, array in {**GOOD, **arrays}.items() if array is not None})
    return folder / "b.npz"


GOOD: dict[str, Any] = {"arr_0": np.zeros((5, 4, 4, 3), np.uint8), "mu": np.zeros(2), "sigma": np.eye(2)}


def test_a_batch_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_batches, "PIECE", 2 * 4 * 4 * 3)
    images = np.arange(5 * 4 * 4 * 3, dtype=np.uint8).reshape(5, 4, 4, 3)
    batch = sample_batches.SampleBatch(archive(tmp_path, arr_0=images, mu=np.array([1.0, 2.0])))
    parts = list(batch.images())
    assert [len(part) for part in parts] == [2, 2, 1]
    assert np.array_equal(torch.cat(parts).permute(0, 2, 3, 1).numpy(), images)
    some = {part.start: piece for part, piece in batch.stream([slice(1, 2), slice(3, 5)])}
    assert {start: images[start : start + len(piece)].tolist() for start, piece in some.items()} == {
        start: piece.permute(0, 2, 3, 1).tolist() for start, piece in some.items()}
    assert {start: len(piece) for start, piece in some.items()} == {1: 1, 3: 2}
    moments = batch.moments()
    assert (moments.mean.dtype, moments.covariance.dtype, moments.mean.tolist()) == (torch.float32, torch.float64, [1.0, 2.0])
    assert sample_batches.SampleBatch(archive(tmp_path, arr_0=images + 1)).fingerprint != batch.fingerprint


class Huge:
    """Stands in an archive for an array of this shape whose bytes are missing."""

    def __init__(self, *shape: int, dtype: str = "<f8") -> None:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
        self.bytes = header.getvalue() + bytes(64)


@pytest.mark.parametrize(("changes", "words"), [
    ({"arr_0": None, "mu": None}, "it has sigma, neither arr_0 nor mu and sigma"),
    ({"arr_0": np.zeros((5, 4, 4, 3))}, r"arr_0 is float64 of shape \(5, 4, 4, 3\)"),
    ({"arr_0": np.zeros((5, 3, 4, 4), np.uint8)}, r"shape \(5, 3, 4, 4\)"), ({"arr_0": np.zeros((0, 4, 4, 3), np.uint8)}, "has no image"),
    ({"sigma": np.eye(3)}, r"sigma \(3, 3\)"), ({"mu": np.array([0, np.nan])}, "not finite"),
    ({"mu": np.array([{}, {}])}, "mu states object"),
    ({"mu": Huge(2**29)}, "which 64 bytes do not hold"), ({"arr_0": Huge(9, 2**20, 2**20, 3, dtype="|u1")}, "which 64 bytes do not hold"),
    ({"mu": np.zeros(5000), "sigma": Huge(5000, 5000)}, "which 64 bytes do not hold"),
])  # fmt: skip
def test_a_batch_of_another_kind_is_refused_before_memory_is_allocated(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = archive(tmp_path, **{name: array for name, array in changes.items() if not isinstance(array, Huge)})
    if lies := {name: array for name, array in changes.items() if isinstance(array, Huge)}:
        with zipfile.ZipFile(path) as good, zipfile.ZipFile(tmp_path / "lie.npz", "w", zipfile.ZIP_DEFLATED) as lie:
            for name in good.namelist():
                lie.writestr(name, lies[name[:-4]].bytes if name[:-4] in lies else good.read(name))
        path = tmp_path / "lie.npz"
    with pytest.raises(BadCheckpoint, match=f"is not a batch of images or statistics, or a damaged one: .*{words}"):
        sample_batches.SampleBatch(path).moments()
