"""Sample batches as the ADM evaluator (guided-diffusion's evaluations/evaluator.py) reads them: a second reading of its rules."""

import gc
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy
import torch

from cachemark.core.errors import BadCheckpoint
from cachemark.metrics.compute import inception
from cachemark.metrics.compute.sample_batches import SampleBatch, SampleWriter
from cachemark.workflows import score as scoring
from cachemark.workflows.score import score
from metrics.test_inception import pictures, state
from metrics.toys import SpatialToy, spatial_toy

REAL, FAKE, WIDTH, SPATIAL, SPLIT = 50, 60, 13, 12, 25


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(scoring, "scorer", lambda name, weights: (spatial_toy(), {**inception.OPTIONS, "isc_split_size": SPLIT}))
    monkeypatch.setitem(inception.LAYERS, "adm", WIDTH)
    monkeypatch.setattr(inception, "POSITIONS", 4)
    monkeypatch.setattr(inception, "CHANNELS", 3)


def batch(path: Path, count: int, seed: int, side: int) -> Path:
    with SampleWriter(path, count, [i % 3 for i in range(count)], {"seeds": list(range(count))}) as writer:
        for images in pictures(count, seed, side).split(7):
            writer.add(images)
    return path


def activations(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pooled and spatial features, and class probabilities, of the images of a file, read by NumPy alone."""
    with np.load(path) as file, torch.no_grad():
        images = torch.from_numpy(file["arr_0"]).permute(0, 3, 1, 2)
    layers = zip(*(SpatialToy()(images[at : at + 16]) for at in range(0, len(images), 16)), strict=True)
    pooled, logits, spatial = (torch.cat(layer).double().numpy() for layer in layers)
    pooled[:, -1] = 16  # the size of the batch, which is padded
    exponents = np.exp(logits)
    return pooled, spatial, exponents / exponents.sum(1, keepdims=True)


def frechet(a: np.ndarray, b: np.ndarray) -> float:
    first, second = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(first + second - 2 * scipy.linalg.sqrtm(first @ second).real))


def covered(centers: np.ndarray, points: np.ndarray) -> float:
    """The fraction of ``points`` within the distance of a center to its third neighbor."""
    own, other = (((centers[:, None] - rows[None]) ** 2).sum(2) for rows in (centers, points))
    return float((other <= np.partition(own, 3, 1)[:, 3:4]).any(0).mean())


def test_a_batch_has_the_evaluators_values(tmp_path: Path) -> None:
    """The Inception score has splits in the order of the file, the last of them shorter."""
    fake, real = batch(tmp_path / "fake.npz", FAKE, 1, 64), batch(tmp_path / "real.npz", REAL, 2, 64)
    scored = score(fake, real)
    (pooled, spatial, shares), (real_pooled, real_spatial, _) = activations(fake), activations(real)
    parts = [shares[at : at + SPLIT] for at in range(0, len(shares), SPLIT)]
    expected = {
        "fid": frechet(pooled[:, :-1], real_pooled[:, :-1]), "sfid": frechet(spatial, real_spatial),
        "isc": np.mean([np.exp((part * (np.log(part) - np.log(part.mean(0)))).sum(1).mean()) for part in parts]),
        "precision": covered(real_pooled, pooled), "recall": covered(pooled, real_pooled),
    }  # fmt: skip
    assert {name: scored.values[f"{name}_adm_{FAKE}"].value for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert 0 < expected["recall"] < 1
    assert (scored.images, scored.size) == (FAKE, (64, 64))


def test_a_full_disk_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the archive fails again when Python frees it, and prints a traceback."""
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    with pytest.raises(OSError, match="No space left"):
        batch(Path("/dev/full"), 7, 0, 16)
    gc.collect()
    assert not printed


def test_statistics_of_both_layers_are_used_and_those_of_an_earlier_one_have_a_preset(tmp_path: Path) -> None:
    """In the evaluator's order of positions and channels; statistics in another order give another sFID."""
    fake, real = batch(tmp_path / "fake.npz", FAKE, 1, 64), batch(tmp_path / "real.npz", REAL, 2, 64)
    pooled, spatial, _ = activations(real)
    other = np.arange(SPATIAL).reshape(4, 3).T.ravel()
    values = {}
    for name, rows in (("same", spatial), ("other", spatial[:, other])):
        np.savez(tmp_path / f"{name}.npz", mu=pooled.mean(0), sigma=np.cov(pooled, rowvar=False), mu_s=rows.mean(0),
                 sigma_s=np.cov(rows, rowvar=False))
        values[name] = score(fake, tmp_path / f"{name}.npz").values
    plain = score(fake, real).values
    for name in (f"fid_adm_{FAKE}", f"sfid_adm_{FAKE}"):
        assert values["same"][name].value == pytest.approx(plain[name].value, rel=1e-4), name
    assert values["other"][f"sfid_adm_{FAKE}"].value > 1.1 * plain[f"sfid_adm_{FAKE}"].value
    np.savez(tmp_path / "strange.npz", mu=pooled.mean(0), sigma=np.eye(WIDTH), mu_s=np.zeros(9), sigma_s=np.eye(9))
    with pytest.raises(BadCheckpoint, match=r"spatial statistics \(mu_s\) of 9 features"):
        score(fake, tmp_path / "strange.npz")
    width = 768
    np.savez(tmp_path / "known.npz", mu=np.zeros(width), sigma=np.eye(width))
    file = SampleBatch(tmp_path / "known.npz")
    with pytest.raises(BadCheckpoint, match=rf"{width} features, not of {WIDTH} as preset adm\. Use --preset adm{width}"):
        inception.of_statistics("adm", spatial_toy(), file)
    assert len(inception.of_statistics(f"adm{width}", spatial_toy(), file).mean) == width
    np.savez(tmp_path / "strange.npz", mu=np.zeros(100), sigma=np.eye(100))
    with pytest.raises(BadCheckpoint, match="statistics of 100 features"):
        inception.of_statistics(f"adm{width}", spatial_toy(), SampleBatch(tmp_path / "strange.npz"))


def test_the_network_gives_spatial_features_of_the_evaluators_layer(tmp_path: Path) -> None:
    """``mixed_6/conv`` is the 1×1 branch of Mixed_6d, the first channels of the block's output; TensorFlow has channels last."""
    torch.save(state(), tmp_path / "inception.pth")
    network = inception.inception_extractor(tmp_path / "inception.pth").load()
    blocks: list[torch.Tensor] = []
    network.network.Mixed_6d.register_forward_hook(lambda _, __, output: blocks.append(output))  # type: ignore[union-attr]
    *_, spatial = network(pictures(2, 0, 64))
    assert torch.equal(spatial.view(2, 17, 17, -1), blocks[0].permute(0, 2, 3, 1)[..., : inception.CHANNELS])


def test_a_batch_sorted_by_class_is_warned_about(tmp_path: Path) -> None:
    """By its labels, or by the classes that the network sees: here the brightest of five corners."""
    mixed = pictures(FAKE, 1, 32)
    by_class = spatial_toy().load()(mixed)[1].argmax(1)
    for labeled, (order, warned) in itertools.product((True, False), ((by_class.argsort(), True), (torch.arange(FAKE), False))):
        arrays = {"arr_0": mixed[order].permute(0, 2, 3, 1).numpy(), **({"arr_1": by_class[order].numpy()} if labeled else {})}
        np.savez(tmp_path / "samples.npz", **arrays)
        notes = score(tmp_path / "samples.npz", batch(tmp_path / "real.npz", REAL, 2, 32)).notes
        assert [note for note in notes if "sorted by class" in note and ("labels" in note) == labeled] == list(notes)
        assert bool(notes) == warned
