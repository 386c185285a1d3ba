"""The KL autoencoder beyond its vectors: grids, sampling, and rejected shapes."""

from __future__ import annotations

import pytest
import torch

from cachemark.core.errors import Unsupported
from cachemark.models.vision.kl import KL, SCALE, KLConfig, grid_of, tokens_of

SMALL = KLConfig(ch=32, ch_mult=(1, 2), num_res_blocks=1, z=4)


@pytest.fixture(scope="module")
def model() -> KL:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return KL(SMALL).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.mark.parametrize("shape", [(1, 15, 4), (1, 0, 4), (16, 4)])
def test_tokens_that_fill_no_square_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(Unsupported, match="no square"):
        grid_of(torch.zeros(shape))


def test_drawn_tokens_have_the_posterior_deviation(model: KL, images: torch.Tensor) -> None:
    mean, deviation = model.moments(images)
    generator = torch.Generator().manual_seed(0)
    offsets = torch.stack([model.encode(images, generator) - tokens_of(mean) * SCALE for _ in range(64)]) / (tokens_of(deviation) * SCALE)
    assert abs(float(offsets.mean())) < 0.02
    assert abs(float(offsets.std()) - 1) < 0.02


def test_variances_are_clamped(model: KL, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = model.quant_conv.forward
    monkeypatch.setattr(model.quant_conv, "forward", lambda x: forward(x) + 1e4)
    assert float(model.moments(images)[1].max()) == pytest.approx(torch.tensor(10.0).exp().item())
