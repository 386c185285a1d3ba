"""A small VQ tokenizer for procedural scenes: 64×64 images to a 16×16 grid of 512 codes and back.

All heavy work is at the resolution of the grid, so it trains in minutes on a CPU. The encoder folds patches of 4×4 pixels into channels;
the decoder unfolds in two steps of 2. Training is in :mod:`tools.train.tokenizers`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .stored import BundledWeights, Tokenizer

NAME = "tiny-vq"
GROUPS = 8


@dataclass(frozen=True)
class Sizes:
    """Sizes of encoder and decoder. ``patch``: pixels per token along a side, a multiple of 2."""

    channels: int = 8
    width: int = 96
    blocks: int = 3
    patch: int = 4
    shallow: int = 24


@dataclass(frozen=True)
class TinyVQConfig(Sizes):
    """Sizes of a :class:`TinyVQ`."""

    codes: int = 512


class TinyBlock(nn.Module):
    """Pre-activation residual block of constant width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(GROUPS, width), nn.Conv2d(width, width, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(GROUPS, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(hidden)))


def encoder(c: Sizes) -> nn.Sequential:
    """Build the encoder: images (B, 3, H, W) to latents (B, channels, H/patch, W/patch)."""
    return nn.Sequential(
        nn.PixelUnshuffle(c.patch), nn.Conv2d(3 * c.patch**2, c.width, 3, padding=1), *(TinyBlock(c.width) for _ in range(c.blocks)),
        nn.GroupNorm(GROUPS, c.width), nn.SiLU(), nn.Conv2d(c.width, c.channels, 1),
    )


def decoder(c: Sizes) -> nn.Sequential:
    """Build the decoder: latents (B, channels, h, w) to images (B, 3, h·patch, w·patch), not clamped."""
    half = c.patch // 2
    return nn.Sequential(
        nn.Conv2d(c.channels, c.width, 3, padding=1), *(TinyBlock(c.width) for _ in range(c.blocks)),
        nn.GroupNorm(GROUPS, c.width), nn.SiLU(), nn.Conv2d(c.width, c.shallow * half**2, 1), nn.PixelShuffle(half),
        nn.Conv2d(c.shallow, 4 * c.shallow, 3, padding=1), nn.SiLU(), nn.PixelShuffle(2),
        nn.Conv2d(c.shallow, 3, 3, padding=1),
    )


class TinyVQ(Tokenizer):
    """Encoder, codebook (512, 8) and decoder. Images are RGB in [-1, 1]; codes are row-major."""

    def __init__(self, config: TinyVQConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or TinyVQConfig()
        self.encoder = encoder(c)
        self.codebook = nn.Parameter(torch.randn(c.codes, c.channels), requires_grad=False)
        self.decoder = decoder(c)

    def quantise(self, z: Tensor) -> Tensor:
        """Map z (B, C, h, w) to the nearest codes (B, h*w) int64; ties go to the first code."""
        with torch.autocast(z.device.type, enabled=False):  # in bf16 the nearest of close neighbours would be a matter of luck
            flat, book = z.flatten(2).transpose(1, 2).float(), self.codebook.float()
            return (book.square().sum(1) - 2 * flat @ book.T).argmin(-1)

    def encode(self, images: Tensor) -> Tensor:
        """Encode images (B, 3, H, W), H and W multiples of ``patch``, to codes (B, H*W/patch²) int64."""
        return self.quantise(self.encoder(images))

    def decode(self, codes: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Decode codes (B, N) on ``grid`` = (h, w), by default a square, to images, not clamped."""
        h, w = grid or (math.isqrt(codes.shape[1]),) * 2
        if codes.dim() != 2 or h * w != codes.shape[1]:
            raise ValueError(f"codes of shape {tuple(codes.shape)} do not fill a grid of {h}x{w}")
        z = F.embedding(codes.long(), self.codebook)
        return self.decoder(z.transpose(1, 2).reshape(codes.shape[0], -1, h, w))


files = BundledWeights(NAME, TinyVQ, TinyVQConfig)
load, metadata = files.load, files.metadata
