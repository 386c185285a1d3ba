"""LPIPS on files of the official names and shapes, and errors for missing or damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.metrics.base import MetricContext
from cachemark.metrics.compute.lpips import Lpips, files, identity
from cachemark.metrics.perceptual import PerceptualDistance
from support.later import later

later("torch_fidelity")
NAMES = ("vgg16-397923af.pth", "weights-vgg16-lpips.pth")
CHANNELS = (64, 128, 256, 512, 512)


def thin(shape: tuple[int, ...], value: float) -> Tensor:
    """A tensor of that shape whose file is a few bytes: one number, seen from everywhere."""
    return torch.full((1,), value).expand(shape)


def write(folder: Path) -> None:
    """Both files, with the names and shapes of the published ones and numbers of ours."""
    import torchvision

    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        shapes = {name: tuple(t.shape) for name, t in torchvision.models.vgg16().state_dict().items()}
    vgg = {name: thin(shape, 0.02 if len(shape) > 1 else 0.0) for name, shape in shapes.items()}
    draws = torch.Generator().manual_seed(0)
    for name in ("features.0.weight", "features.2.weight"):  # else all channels are equal
        vgg[name] = torch.randn(shapes[name], generator=draws) * 0.1
    torch.save(vgg, folder / NAMES[0])
    torch.save({f"lin{i}.model.1.weight": thin((1, c, 1, 1), 0.1) for i, c in enumerate(CHANNELS)}, folder / NAMES[1])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PyTorch's cache of downloads, empty."""
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    return tmp_path / "checkpoints"


def pictures() -> Tensor:
    return torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_values_are_those_of_torch_fidelity_on_bytes_and_grow_with_the_difference(hub: Path) -> None:
    write(hub)
    from torch_fidelity.sample_similarity_lpips import SampleSimilarityLPIPS

    network, images = Lpips(), pictures()
    levels = torch.randint(0, 256, (2, 2, 3, 32, 32), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    expected = SampleSimilarityLPIPS("x")(levels[0], levels[1]).flatten()
    assert network(levels[0].float() / 127.5 - 1, levels[1].float() / 127.5 - 1) == pytest.approx(expected, rel=1e-4)
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(2))
    assert network(images, images).tolist() == [0, 0, 0]
    near, far = network(images, images + 0.05 * noise), network(images, images + 0.5 * noise)
    assert near.shape == (3,)
    assert (near > 0).all()
    assert (far > near).all()


@pytest.mark.parametrize("missing", NAMES)
def test_a_missing_file_is_named_with_how_to_get_it(hub: Path, missing: str) -> None:
    write(hub)
    (hub / missing).unlink()
    with pytest.raises(Unsupported, match=rf"not measured: needs {missing}, get it with: curl .*{missing}"):
        files()


def test_two_homes_that_lack_a_file_have_one_identity(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = []
    for user in ("ada", "grace"):
        monkeypatch.setenv("HOME", str(hub / user))
        monkeypatch.setattr(torch.hub, "_hub_dir", str(hub / user / "torch"))
        with pytest.raises(Unsupported) as caught:
            PerceptualDistance.identity(MetricContext())
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "-o ~/torch/checkpoints/vgg16" in messages[0]


@pytest.mark.parametrize("damaged", NAMES)
def test_a_damaged_file_is_refused(hub: Path, damaged: str) -> None:
    write(hub)
    (hub / damaged).write_bytes((hub / damaged).read_bytes()[:100])
    with pytest.raises(BadCheckpoint, match=damaged):
        Lpips()


def test_weights_of_another_network_are_refused(hub: Path) -> None:
    write(hub)
    torch.save({"lin0.model.1.weight": torch.zeros(1, 3, 1, 1)}, hub / NAMES[1])
    with pytest.raises(BadCheckpoint, match="does not fit"):
        Lpips()


def test_other_weights_are_another_case(hub: Path) -> None:
    write(hub)
    before = identity()
    torch.save({f"lin{i}.model.1.weight": thin((1, c, 1, 1), 0.2) for i, c in enumerate(CHANNELS)}, hub / NAMES[1])
    assert identity() != before
    assert PerceptualDistance.identity(MetricContext()) == {"weights": identity()}
