"""The embedded KL autoencoder: its arithmetic and its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.models.tiny.tiny_kl import NAME, TinyKL, TinyKLConfig, check, drawn, load, metadata

SMALL = TinyKLConfig(channels=4, width=16, blocks=1)


@pytest.fixture
def kl() -> TinyKL:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TinyKL(SMALL).eval().requires_grad_(False)
    model.centre.copy_(torch.tensor([1.0, -2.0, 0.5, 0.0]))
    model.deviation.copy_(torch.tensor([2.0, 0.5, 1.0, 4.0]))
    return model


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(3, 3, 64, 64, generator=draws()) * 2 - 1


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def write(path: Path, kl: TinyKL, about: dict[str, str] | None = None) -> Path:
    state = {name: tensor.detach().half() for name, tensor in kl.state_dict().items()}
    save_file(state, str(path), metadata={"cachemark": json.dumps(metadata(kl.config) if about is None else about)})
    return path


def test_shapes(kl: TinyKL, images: torch.Tensor) -> None:
    tokens = kl.encode(images)
    assert tokens.shape == (3, 256, 4)
    assert tokens.dtype == torch.float32
    assert kl.decode(tokens).shape == (3, 3, 64, 64)


def test_tokens_are_the_mean_with_each_channel_moved_and_scaled(kl: TinyKL, images: torch.Tensor) -> None:
    mean, _ = kl.moments(images)
    tokens = kl.encode(images).mT.unflatten(2, (16, 16))
    assert torch.allclose(tokens[:, 1], (mean[:, 1] + 2.0) / 0.5, atol=1e-5)
    assert torch.allclose(tokens[:, 3], mean[:, 3] / 4.0, atol=1e-6)


def test_decoding_undoes_the_scaling(kl: TinyKL, images: torch.Tensor) -> None:
    mean, _ = kl.moments(images)
    assert torch.allclose(kl.decode(kl.encode(images)), kl.decoder(mean), atol=1e-5)


def test_tokens_are_row_major(kl: TinyKL) -> None:
    tokens = torch.zeros(1, 256, 4)
    changed = tokens.clone()
    changed[0, 16 * 10 + 3] = 3.0  # row 10, column 3
    difference = (kl.decode(changed) - kl.decode(tokens)).abs().amax((0, 1))
    assert difference[40:44, 12:16].mean() > 3 * difference.mean()


def test_drawn_tokens_have_the_mean_and_the_variance_of_their_distribution() -> None:
    mean, log_variance = torch.tensor([2.0, -1.0]).expand(20000, 2), torch.tensor([0.0, 2.0]).expand(20000, 2)
    found = drawn(mean, log_variance, draws())
    assert torch.allclose(found.mean(0), mean[0], atol=0.1)
    assert torch.allclose(found.var(0), log_variance[0].exp(), rtol=0.05)


def test_a_draw_depends_on_the_generator_alone(kl: TinyKL, images: torch.Tensor) -> None:
    assert torch.equal(kl.encode(images, draws()), kl.encode(images, draws()))
    assert not torch.equal(kl.encode(images, draws()), kl.encode(images, draws(1)))
    assert not torch.equal(kl.encode(images, draws()), kl.encode(images))


def test_tokens_that_fill_no_square_are_refused(kl: TinyKL) -> None:
    with pytest.raises(Unsupported, match="fill no square"):
        kl.decode(torch.zeros(1, 255, 4))


def test_a_file_gives_the_same_model(kl: TinyKL, tmp_path: Path) -> None:
    path = write(tmp_path / "kl.safetensors", kl)
    check(path)
    read = load(path)
    assert read.config == SMALL
    assert not read.training
    for name, tensor in kl.state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor.half().float()), name


def test_files_that_hold_something_else_are_refused(kl: TinyKL, tmp_path: Path) -> None:
    text = tmp_path / "text.safetensors"
    text.write_text("no weights")
    other = write(tmp_path / "other.safetensors", kl, {"model": "tiny-vq", "config": "{}"})
    strange = write(tmp_path / "strange.safetensors", kl, {"model": NAME, "config": '{"codes": 3}'})
    for path, words in ((text, "header"), (other, "'tiny-vq'"), (strange, "codes"), (tmp_path / "none.safetensors", "is not a file")):
        for reader in (load, check):
            with pytest.raises(BadCheckpoint, match=words) as caught:
                reader(path)
            assert f"tools.train {NAME}" in caught.value.remedy


def test_a_missing_tensor_is_named(kl: TinyKL, tmp_path: Path) -> None:
    path = write(tmp_path / "kl.safetensors", kl)
    state = load_file(str(path))
    del state["deviation"]
    save_file(state, str(path), metadata={"cachemark": json.dumps(metadata(SMALL))})
    with pytest.raises(BadCheckpoint, match="deviation"):
        load(path)


def test_the_language_is_what_makes_tokens(kl: TinyKL) -> None:
    before = kl.language
    kl.decoder[0].weight += 1
    assert kl.language == before
    kl.deviation += 1
    assert kl.language != before
