"""Features of SkipVAR's decision (arXiv 2506.08908): movement of edges, share of high frequencies."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

RADIUS = 0.4  # of half the shorter side: frequencies further from 0 are high


def moved_edges(old: Tensor, new: Tensor) -> Tensor:
    """Return the mean difference of the Sobel edges of two images (batch, 3, H, W), (batch,)."""
    return (edges(new) - edges(old)).abs().flatten(1).mean(1)


def edges(images: Tensor) -> Tensor:
    """Return the length of the Sobel gradient of gray images, (batch, H, W), with zeros outside."""
    gray = F.pad(images.mean(1), (1, 1, 1, 1))
    across, down = gray[:, :, :-2] - gray[:, :, 2:], gray[:, :-2] - gray[:, 2:]
    gx = across[:, :-2] + 2 * across[:, 1:-1] + across[:, 2:]
    gy = down[:, :, :-2] + 2 * down[:, :, 1:-1] + down[:, :, 2:]
    return (gx.square() + gy.square()).sqrt()


def high_frequencies(images: Tensor) -> Tensor:
    """Return the share of high frequencies in Fourier amplitudes: (batch, 3, H, W) -> (batch,)."""
    amplitudes = torch.fft.fftshift(torch.fft.fft2(images.mean(1)).abs(), dim=(1, 2))
    height, width = amplitudes.shape[1:]
    y, x = (torch.arange(size, device=images.device) - size // 2 for size in (height, width))
    far = (y[:, None].square() + x.square()).sqrt() > int(RADIUS * (min(height, width) / 2))
    return (amplitudes * far).flatten(1).sum(1) / (amplitudes.flatten(1).sum(1) + 1e-6)
