"""Fidelity: differences of a method's output to the full cache's at the same seeds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PSNR_CAP = 60.0  # dB; identical images would give infinity


def agreement(tokens: Tensor, reference: Tensor) -> Tensor:
    """Return the fraction of positions with equal tokens: (batch, N) twice → (batch,) fp32."""
    return (tokens == reference).float().mean(1)


def distance(tokens: Tensor, reference: Tensor) -> Tensor:
    """Return the root mean square difference of tokens (batch, N, C), (batch,) fp64."""
    return (tokens.double() - reference.double()).square().flatten(1).mean(1).sqrt()


def psnr(images: Tensor, reference: Tensor) -> Tensor:
    """Return the PSNR in dB of images in [−1, 1] (clamped), capped at 60, (batch,)."""
    error = (_unit(images) - _unit(reference)).square().flatten(1).mean(1)
    return (-10 * torch.log10(error.clamp_min(1e-30))).clamp_max(PSNR_CAP)


def ssim(images: Tensor, reference: Tensor) -> Tensor:
    """Return the structural similarity of images in [−1, 1], (batch,).

    Wang, Bovik, Sheikh and Simoncelli (2004), Eq. 13, with the authors' 11×11 Gaussian of σ 1.5, K1 = 0.01, K2 = 0.03,
    means over positions where the window fits, over channels.
    """
    x, y = _unit(images), _unit(reference)
    taps = torch.exp(-((torch.arange(11, device=x.device) - 5.0) ** 2) / (2 * 1.5**2))
    window = (taps[:, None] * taps / taps.sum() ** 2).expand(x.size(1), 1, 11, 11)

    def blur(z: Tensor) -> Tensor:
        return F.conv2d(z, window, groups=z.size(1))

    mx, my = blur(x), blur(y)
    vx, vy, cov = blur(x * x) - mx * mx, blur(y * y) - my * my, blur(x * y) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    score = (2 * mx * my + c1) * (2 * cov + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    return score.flatten(1).mean(1)


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p ‖ q) in nats of log-probabilities (…, vocab), (…); rounding may make it negative."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def _unit(images: Tensor) -> Tensor:
    return (images.float().clamp(-1, 1) + 1) / 2
