"""Fidelity against definitions written out slowly and independently."""

import math

import numpy as np
import pytest
import torch

from cachemark.metrics.base import ImageBatch
from cachemark.metrics.similarity import psnr, ssim
from cachemark.metrics.tokens import TokenAgreement, kl_divergence


def images(seed: int, *shape: int) -> torch.Tensor:
    """Smooth random images in about [-1, 1]: noise, blurred once along each axis."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (noise + noise.roll(1, -1) + noise.roll(1, -2)) / 2


def naive_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """Compute SSIM (Wang et al. 2004) in float64 by loops over windows and channels."""
    window = np.array([[math.exp(-((i - 5) ** 2 + (j - 5) ** 2) / (2 * 1.5**2)) for j in range(11)] for i in range(11)])
    window /= window.sum()
    scores = []
    for a, b in zip(x, y, strict=True):
        for top in range(a.shape[0] - 10):
            for column in range(a.shape[1] - 10):
                p, q = a[top : top + 11, column : column + 11], b[top : top + 11, column : column + 11]
                mp, mq = (window * p).sum(), (window * q).sum()
                vp, vq = (window * (p - mp) ** 2).sum(), (window * (q - mq) ** 2).sum()
                product = (window * (p - mp) * (q - mq)).sum()
                c1, c2 = (0.01 * 1.0) ** 2, (0.03 * 1.0) ** 2
                scores.append((2 * mp * mq + c1) * (2 * product + c2) / ((mp**2 + mq**2 + c1) * (vp + vq + c2)))
    return float(np.mean(scores))


def unit(image: torch.Tensor) -> np.ndarray:
    return (image.double().clamp(-1, 1).numpy() + 1) / 2


@pytest.mark.parametrize("size", [(11, 11), (13, 17)])
@pytest.mark.parametrize("noise", [0.0, 0.02, 1.0])
def test_ssim_is_the_published_formula(size: tuple[int, int], noise: float) -> None:
    x = images(0, 2, 3, *size)
    y = x * 0.9 + noise * images(1, 2, 3, *size)
    expected = [naive_ssim(unit(a), unit(b)) for a, b in zip(x, y, strict=True)]
    assert ssim(x, y).tolist() == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize(("image", "reference", "expected"), [
    (0.2, 0.0, 20), (0.02, 0.0, 40),  # a tenth and a hundredth of the range from black to white
    (1e-6, 0.0, 60), (7.0, 1.0, 60),  # capped, and both are white
    (-1.0, 1.0, 0),
])  # fmt: skip
def test_psnr_counts_the_range_from_black_to_white_as_one(image: float, reference: float, expected: float) -> None:
    x = torch.zeros(1, 3, 8, 8)
    assert psnr(x + image, x + reference).item() == pytest.approx(expected, abs=1e-3)


def test_agreement_is_a_share_of_positions_and_divergence_is_in_nats() -> None:
    reference = torch.arange(8).view(2, 4)
    tokens = reference.clone()
    tokens[1, 2:] += 1
    batch = ImageBatch(tokens, reference, tokens, reference, [0, 1], [0, 1])
    assert TokenAgreement().measure(batch).tolist() == [1.0, 0.5]
    p, q = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.9, 0.1]])
    assert kl_divergence(p.log(), q.log()).item() == pytest.approx(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1), abs=1e-6)
    assert kl_divergence(q.log(), p.log()).item() == pytest.approx(0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5), abs=1e-6)
    assert kl_divergence(p.log(), p.log()).item() == 0


def test_nan_is_not_hidden() -> None:
    x = images(3, 1, 3, 12, 12)
    y = x.clone()
    y[0, 0, 0, 0] = torch.nan
    assert psnr(y, x).isnan().all()
    assert ssim(y, x).isnan().all()
