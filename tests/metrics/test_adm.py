"""The published preset: Inception from a file, an npz of real images, torch-fidelity's own values, and an error for every gap."""

from __future__ import annotations

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
from PIL import Image
from torch import Tensor

from cachemark.core.errors import BadCheckpoint, UnknownName, Unsupported
from cachemark.metrics.compute import adm as published_preset
from cachemark.metrics.compute import named_presets as presets
from cachemark.metrics.compute.adm import ReferenceBatch, adm, inception, source
from cachemark.metrics.compute.coco import coco
from cachemark.metrics.compute.feature_preset import Preset
from cachemark.metrics.compute.image_features import ImageFeatures
from support.later import later

torch_fidelity = later("torch_fidelity")

FEW: dict[str, Any] = {"kid_subset_size": 4, "kid_subsets": 4, "isc_splits": 2}
SIDE, REAL, FAKE = 256, 6, 5


def pictures(count: int, seed: int, side: int = SIDE) -> Tensor:
    """Bytes (count, 3, side, side): coarse random patches, so that the network has something to see."""
    draws = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 6, 6, generator=draws) * 255
    return torch.nn.functional.interpolate(coarse, size=(side, side), mode="bilinear").to(torch.uint8)


LAST = tuple(f"Mixed_7c.branch{name}.conv" for name in ("1x1", "3x3_2a", "3x3_2b", "3x3dbl_3a", "3x3dbl_3b", "_pool"))


def state(seed: int = 0) -> dict[str, Tensor]:
    """Random weights with the names and shapes of the official file. Of the features that come out most are zero: the eigenvalues of
    which FID is made then take no time."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    class Unfilled(FeatureExtractorInceptionV3):
        def load_state_dict(self, *_: Any, **__: Any) -> None:
            return None

    nothing, draws = io.BytesIO(), torch.Generator().manual_seed(seed)
    torch.save({}, nothing)
    nothing.seek(0)
    found = Unfilled("unfilled", ["2048"], feature_extractor_weights_path=nothing).state_dict()
    for name, tensor in found.items():
        if tensor.dim() > 1:
            tensor.normal_(0, (2 / tensor[0].numel()) ** 0.5, generator=draws)
        if name.startswith(LAST):
            tensor[torch.arange(len(tensor)) % 16 > 0] = 0
    return dict(found)


def folder(images: Tensor, path: Path) -> str:
    path.mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path / f"{i:03d}.png")
    return str(path)


@dataclass(frozen=True)
class Published:
    """Files as they are published, but small, and what torch-fidelity alone says of the same images."""

    weights: Path
    batch: Path
    scores: dict[str, float]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    home = tmp_path_factory.mktemp("published")
    torch.save(state(), home / "inception.pth", _use_new_zipfile_serialization=False)  # the old format, as files of that age have
    scores = torch_fidelity.calculate_metrics(
        input1=folder(pictures(FAKE, 1), home / "fake"), input2=folder(pictures(REAL, 2), home / "real"), input2_cache_name="real",
        feature_extractor="inception-v3-compat", feature_extractor_weights_path=str(home / "inception.pth"), cache_root=str(home),
        fid=True, kid=True, isc=True, prc=True, cuda=False, verbose=False, save_cpu_ram=True, batch_size=2, **FEW,
    )
    kept = torch.load(home / "real-inception-v3-compat-stat-fid-2048.pt", weights_only=False)
    images = pictures(REAL, 2).permute(0, 2, 3, 1).numpy()
    np.savez(home / "batch.npz", arr_0=images, arr_1=np.arange(REAL), mu_s=np.zeros(3), **kept)
    return Published(home / "inception.pth", home / "batch.npz", scores)


@pytest.fixture(autouse=True)
def _nothing_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch-home"))
    monkeypatch.setattr("torch.hub.download_url_to_file", lambda *_, **__: pytest.fail("something was to be fetched"))


@pytest.fixture(scope="module")
def preset(published: Published) -> Preset:
    return adm(published.weights, published.batch, batch=2)


@pytest.fixture(scope="module")
def seen(preset: Preset) -> ImageFeatures:
    return preset.extract(pictures(FAKE, 1), batch=2)


# ------------------------------------------------------------------------------------------------ the same numbers

def test_the_figures_are_those_of_torch_fidelity_alone(published: Published, preset: Preset, seen: ImageFeatures) -> None:
    """FID by the statistics in the file, not by its images, which are a few of many more: it follows a mean that is moved."""
    moved = preset.reference.mean.clone()
    moved[0] += 3.0
    away = float(seen.features[:, 0].mean() - preset.reference.mean[0])
    ours = replace(preset, reference=replace(preset.reference, mean=moved)).scores(seen, **FEW)
    names = {"fid": "frechet_inception_distance", "kid": "kernel_inception_distance_mean", "isc": "inception_score_mean",
             "precision": "precision", "recall": "recall"}  # fmt: skip
    assert set(ours) == {f"{name}_adm_{FAKE}" for name in names}
    ours[f"fid_adm_{FAKE}"] -= 9 - 6 * away
    for name, theirs in names.items():
        assert ours[f"{name}_adm_{FAKE}"] == pytest.approx(published.scores[theirs], rel=1e-3), name


def test_of_coco_the_images_in_the_file_are_all_that_counts(published: Published, seen: ImageFeatures, tmp_path: Path) -> None:
    """torch-fidelity's values of the same images; statistics beside them are not read."""
    np.savez(tmp_path / "coco.npz", arr_0=pictures(REAL, 2).permute(0, 2, 3, 1).numpy())
    made = coco(published.weights, tmp_path / "coco.npz", batch=2)
    ours = made.scores(seen, **FEW)
    assert ours[f"fid_coco_{FAKE}"] == pytest.approx(published.scores["frechet_inception_distance"], rel=1e-3)
    assert ours[f"recall_coco_{FAKE}"] == pytest.approx(published.scores["recall"])
    assert made.reference.count == REAL
    stated = presets.stated("coco", published.weights, tmp_path / "coco.npz")
    assert stated == {**made.identity, "reference": ReferenceBatch(tmp_path / "coco.npz").fingerprint}
    missing = presets.stated("coco", published.weights, tmp_path / "none.npz")["missing"]
    assert missing.startswith("not measured: needs real images of COCO in an npz file (")
    assert "docs/reference/quality.md" in missing
    assert "needs the weights of Inception v3" in presets.stated("coco", "", tmp_path / "coco.npz")["missing"]


def test_the_name_of_the_extractor_carries_the_hash_of_the_weights(preset: Preset, published: Published) -> None:
    assert preset.extractor == f"inception-v3-compat-{hashlib.sha256(published.weights.read_bytes()).hexdigest()[:12]}"
    assert preset.identity["extractor"] == preset.extractor
    assert preset.identity["reference"] == preset.reference.digest


def test_the_features_of_the_reference_are_computed_once(published: Published, preset: Preset, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = next(published.batch.parent.glob("batch.*.safetensors"))
    content = kept.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(ImageFeatures, "of", lambda *_, **__: pytest.fail("they were computed again"))
        again = adm(published.weights, published.batch)
        assert again.reference.digest == preset.reference.digest
    kept.write_bytes(content[:-7])
    monkeypatch.setattr(ImageFeatures, "of", lambda *_, **__: ImageFeatures.from_bytes(content, preset.extractor))
    assert adm(published.weights, published.batch).reference.digest == preset.reference.digest
    assert kept.read_bytes() == content, "a damaged file is made anew"
    assert not list(published.batch.parent.glob("*.part"))


# ------------------------------------------------------------------------------------------------ sizes

def test_larger_numbers_are_resized_before_they_become_bytes(preset: Preset, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Tensor] = []

    def spied(images: Any, *_: Any, **__: Any) -> ImageFeatures:
        asked.extend(images)
        return ImageFeatures(preset.extractor, torch.zeros(1, 1), torch.zeros(1, 1))

    monkeypatch.setattr(ImageFeatures, "of", spied)
    large = torch.rand(2, 3, 384, 384, generator=torch.Generator().manual_seed(0)) * 2.4 - 1.2
    preset.extract(large)
    wanted = torch.nn.functional.interpolate(large, size=(256, 256), mode="bicubic", align_corners=False, antialias=False)
    assert torch.equal(asked[0], wanted)
    smooth = torch.nn.functional.interpolate(large, size=(256, 256), mode="bicubic", align_corners=False, antialias=True)
    assert not torch.allclose(asked[0], smooth, atol=0.01)
    asked.clear()
    fitting = pictures(2, 0)
    preset.extract([fitting[:1], fitting[1:]])
    assert all(torch.equal(a, b) for a, b in zip(asked, fitting.split(1), strict=True))


@pytest.mark.parametrize(("images", "words"), [
    (pictures(1, 0, 384), "256×256 pixels are to be seen; the images are bytes of 384×384"),
    (torch.zeros(1, 3, 256, 384), "the images are 256×384 pixels"),
    (torch.zeros(1, 1, 256, 256), r"got a tensor of shape \(1, 1, 256, 256\)"),
    (torch.full((1, 3, 384, 384), torch.nan), "NaN"),
])  # fmt: skip
def test_images_that_cannot_be_resized_are_refused(images: Tensor, words: str, preset: Preset) -> None:
    with pytest.raises(Unsupported, match=words):
        preset.extract(images)


# ------------------------------------------------------------------------------------------------ what is missing or damaged

def test_a_missing_piece_says_how_to_get_it(published: Published, tmp_path: Path) -> None:
    for weights in ("", tmp_path / "nowhere.pth"):
        with pytest.raises(Unsupported, match=f"^not measured: needs the weights of Inception v3.*, get it with: .*{source()}$"):
            adm(weights, published.batch)
    for batch in ("", tmp_path / "nowhere.npz"):
        with pytest.raises(Unsupported, match=r"^not measured: needs ADM's reference batch.*, get it with: .*imagenet256_labeled\.npz$"):
            adm(published.weights, batch)
    with pytest.raises(BadCheckpoint, match="is not a file"):
        inception(tmp_path / "nowhere.pth")


def cut(path: Path, to: Path, keep: int) -> Path:
    to.write_bytes(path.read_bytes()[:keep])
    return to


def test_damaged_weights_are_refused(published: Published, tmp_path: Path) -> None:
    size = published.weights.stat().st_size
    for keep in (0, 10, size // 2, size - 5):
        with pytest.raises(BadCheckpoint, match="is not a weights file, or a damaged one"):
            inception(cut(published.weights, tmp_path / "cut.pth", keep))


def test_other_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.pth"
    torch.save({"Conv2d_1a_3x3.conv.weight": torch.zeros(3)}, path)
    with pytest.raises(BadCheckpoint, match=r"does not fit torch-fidelity's inception-v3-compat: .*Missing key"):
        inception(path)
    torch.save([torch.zeros(3)], path)
    with pytest.raises(BadCheckpoint, match="holds no tensors by name"):
        inception(path)


def test_a_weights_file_runs_no_code(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return (Path.touch, (tmp_path / "sprung",))

    torch.save({"x": Trap()}, tmp_path / "trap.pth")
    with pytest.raises(BadCheckpoint, match="damaged one: UnpicklingError"):
        inception(tmp_path / "trap.pth")
    assert not (tmp_path / "sprung").exists()
    torch.load(tmp_path / "trap.pth", weights_only=False)
    assert (tmp_path / "sprung").exists(), "the trap works"


def archive(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


GOOD = {"arr_0": np.zeros((5, 4, 4, 3), np.uint8), "mu": np.zeros(2), "sigma": np.eye(2)}


def test_a_batch_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_preset, "CHUNK", 2)
    images = np.arange(5 * 4 * 4 * 3, dtype=np.uint8).reshape(5, 4, 4, 3)
    batch = ReferenceBatch(archive(tmp_path / "b.npz", **{**GOOD, "arr_0": images, "mu": np.array([1.0, 2.0])}))
    parts = list(batch.images())
    assert [len(part) for part in parts] == [2, 2, 1]
    assert np.array_equal(torch.cat(parts).permute(0, 2, 3, 1).numpy(), images)
    mean, covariance = batch.statistics()
    assert (mean.dtype, covariance.dtype, mean.tolist()) == (torch.float32, torch.float64, [1.0, 2.0])
    other = ReferenceBatch(archive(tmp_path / "o.npz", **{**GOOD, "arr_0": images + 1}))
    assert other.fingerprint != batch.fingerprint
    same = ReferenceBatch(archive(tmp_path / "s.npz", **{**GOOD, "arr_0": images, "mu": np.array([1.0, 2.0])}))
    assert same.fingerprint == batch.fingerprint


@pytest.mark.parametrize(("changes", "words"), [
    ({"arr_0": None}, "arr_0.npy"), ({"arr_0": np.zeros((5, 4, 4, 3))}, r"arr_0 is float64 of shape \(5, 4, 4, 3\)"),
    ({"arr_0": np.zeros((5, 3, 4, 4), np.uint8)}, r"shape \(5, 3, 4, 4\)"), ({"mu": None}, "mu"),
    ({"sigma": np.eye(3)}, r"sigma \(3, 3\)"), ({"mu": np.array([0, np.nan])}, "not finite"),
    ({"mu": np.array([{}, {}])}, "allow_pickle"),
])  # fmt: skip
def test_a_batch_of_another_kind_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "b.npz", **{k: v for k, v in {**GOOD, **changes}.items() if v is not None})
    with pytest.raises(BadCheckpoint, match=f"is not a reference batch, or a damaged one: .*{words}"):
        ReferenceBatch(path).statistics()


def test_a_truncated_batch_is_refused(published: Published, tmp_path: Path) -> None:
    size = published.batch.stat().st_size
    with pytest.raises(BadCheckpoint, match="is not a reference batch, or a damaged one"):
        adm(published.weights, cut(published.batch, tmp_path / "cut.npz", 100))
    for keep in (0, size // 2, size - 1):
        with pytest.raises(BadCheckpoint, match="is not a reference batch, or a damaged one"):
            ReferenceBatch(cut(published.batch, tmp_path / "cut.npz", keep)).statistics()
    content = bytearray(published.batch.read_bytes())
    content[5000] ^= 1  # inside the images; the zip's checksum must notice
    (tmp_path / "bit.npz").write_bytes(content)
    with pytest.raises(BadCheckpoint, match="Bad CRC-32"):
        list(ReferenceBatch(tmp_path / "bit.npz").images())
    short = tmp_path / "short.npz"
    with zipfile.ZipFile(published.batch) as whole, zipfile.ZipFile(short, "w") as less:
        less.writestr("arr_0.npy", whole.read("arr_0.npy")[:-1000])
    with pytest.raises(BadCheckpoint, match="a damaged one"):
        list(ReferenceBatch(short).images())


def test_statistics_of_another_network_are_refused(published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFeatures, "of", lambda _, name, **__: ImageFeatures(name, torch.zeros(3, 2048), torch.zeros(3, 1008)))
    with pytest.raises(BadCheckpoint, match="statistics of 2 features, not of 2048"):
        adm(published.weights, archive(tmp_path / "b.npz", **GOOD))


def test_a_folder_that_cannot_be_written_to_is_named_before_the_work(
    published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFeatures, "of", lambda *_, **__: pytest.fail("the work was begun"))
    with pytest.raises(Unsupported, match=r"cannot be saved in '.*nowhere'"):
        adm(published.weights, published.batch, cache=tmp_path / "nowhere")


# ------------------------------------------------------------------------------------------------ presets by name

def test_the_preset_of_the_procedural_scenes_is_packaged() -> None:
    found = presets.preset("scene")
    assert (found.name, found.resize, found.reference.count) == ("scene", None, 10_000)
    assert found.extractor == found.reference.extractor


def test_the_weights_are_found_where_pytorch_keeps_downloads(
    published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unsupported, match="not measured: needs the weights of Inception v3, get it"):
        presets.preset("adm", reference=published.batch)
    place = tmp_path / "torch-home" / "hub" / "checkpoints" / source().rsplit("/", 1)[1]
    place.parent.mkdir(parents=True)
    place.symlink_to(published.weights)
    found = presets.preset("adm", reference=published.batch)
    assert found.reference.digest == presets.preset("adm", weights=published.weights, reference=published.batch).reference.digest


def test_other_names_are_refused(preset: Preset) -> None:
    with pytest.raises(UnknownName, match=r"Unknown preset of quality 'scenes'. Did you mean 'scene'"):
        presets.preset("scenes")
    with pytest.raises(UnknownName):
        replace(preset, name="adm_256")
    with pytest.raises(BadCheckpoint, match="sees the images"):
        replace(preset, extractor="cachemark-000000000000")
