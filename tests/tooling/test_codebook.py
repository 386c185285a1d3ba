"""The codebook that follows what an encoder makes by moving averages."""

from __future__ import annotations

import pytest
import torch

from cachemark.models.tiny.tiny_vq import TinyVQ, TinyVQConfig
from tools.train.tokenizers import MovingCodebook

pytestmark = pytest.mark.usefixtures("quick")
SMALL = TinyVQConfig(codes=8, channels=2, width=16, blocks=1)


@pytest.fixture
def vq() -> TinyVQ:
    return TinyVQ(SMALL)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def clusters(centres: torch.Tensor, spread: float = 0.01) -> torch.Tensor:
    """Latents (1, 2, 8, 8) around the given centres (n, 2), n dividing 64."""
    points = centres.repeat(64 // len(centres), 1) + spread * torch.randn(64, 2, generator=generator())
    return points.T.reshape(1, 2, 8, 8)


def nearest(points: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """Distance of each of ``points`` (n, d) to the nearest of ``others`` (m, d); exact, which ``cdist`` is not."""
    return (points[:, None] - candidates[None]).norm(dim=-1).amin(1)


def moving(vq: TinyVQ, **options: float) -> MovingCodebook:
    return MovingCodebook(vq.config.codes, vq.config.channels, **options)


def follow(codebook: MovingCodebook, vq: TinyVQ, latents: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
    """One step of training: the codes of ``latents``, and the codebook moved towards them."""
    vectors = latents.movedim(1, -1).flatten(0, -2)
    codebook.start(vq.codebook, vectors, draws)
    codes = vq.quantise(latents)
    codebook.move(vq.codebook, vectors, codes.flatten(), draws)
    return codes


def test_the_first_batch_fills_the_codebook(vq: TinyVQ) -> None:
    latents = torch.randn(1, 2, 8, 8, generator=generator()) + 5
    codebook = moving(vq, decay=1.0)
    follow(codebook, vq, latents, generator())
    assert nearest(vq.codebook, latents.flatten(2)[0].T).max() < 1e-5, "each code is one of the latents"


def test_codes_follow_their_latents(vq: TinyVQ) -> None:
    codebook, draws = moving(vq, decay=0.5, dead=0.0), generator()
    corners = torch.tensor([[3.0, 3.0], [3.0, -3.0], [-3.0, 3.0], [-3.0, -3.0]])
    follow(codebook, vq, clusters(corners), draws)
    for _ in range(30):
        codes = follow(codebook, vq, clusters(corners + 0.5), draws)
    assert nearest(corners + 0.5, vq.codebook[codes.unique()]).max() < 0.05


def test_dead_codes_are_revived(vq: TinyVQ) -> None:
    codebook, draws = moving(vq, decay=0.5), generator()
    follow(codebook, vq, clusters(torch.tensor([[0.0, 0.0]])), draws)
    angles = torch.arange(8) * torch.pi / 4
    circle = 20 * torch.stack((angles.cos(), angles.sin()), 1)
    for _ in range(40):
        codes = follow(codebook, vq, clusters(circle), draws)
    assert codes.unique().numel() == 8
