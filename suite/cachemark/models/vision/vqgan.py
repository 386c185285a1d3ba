"""Chameleon's VQGAN (2024): images to codes of a plain codebook and back.

Names are those of ``vqgan.ckpt``; attention is only in the middle of encoder and decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...core.errors import Unsupported
from .autoencoder import KLDecoder, KLEncoder
from .vq import AttnBlock, Pyramid, conv

UNUSED = ("loss.*",)  # the discriminator of its training, where a file still holds it


@dataclass(frozen=True)
class VQGANConfig(Pyramid):
    """Shape of a tokenizer. ``z``: channels of latents, ``width``: of code vectors."""

    z: int = 256
    codes: int = 8192
    width: int = 256


class PlainCodebook(nn.Module):
    """The table of code vectors, used as they are."""

    def __init__(self, config: VQGANConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.codes, config.width)

    def nearest(self, vectors: Tensor) -> Tensor:
        """Map vectors (n, width) to the nearest codes (n,); ties go to the first code."""
        table = self.embedding.weight
        return (vectors.square().sum(1, keepdim=True) + table.square().sum(1) - 2 * vectors @ table.T).argmin(1)


class VQGAN(nn.Module):
    """A tokenizer: images (B, 3, f·h, f·w) to raster-ordered codes (B, h·w) and back; runs in fp32."""

    def __init__(self, config: VQGANConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or VQGANConfig()
        self.encoder = KLEncoder(c, c.z, AttnBlock, in_levels=False)
        self.decoder = KLDecoder(c, c.z, AttnBlock, in_levels=False)
        self.quantize = PlainCodebook(c)
        self.quant_conv, self.post_quant_conv = conv(c.z, c.width, 1), conv(c.width, c.z, 1)

    def decode(self, codes: Tensor, grid: tuple[int, int]) -> Tensor:
        """Decode codes (B, h·w) on ``grid`` = (h, w) to images, nominally in [−1, 1] and not clamped."""
        if codes.ndim != 2 or codes.shape[1] != grid[0] * grid[1]:
            raise Unsupported(f"Codes of shape {tuple(codes.shape)} do not fill a grid of {grid[0]}×{grid[1]}.",
                              remedy=f"Use a batch of {grid[0] * grid[1]} codes each, or the grid that they came from.")
        return self.decoder(self.post_quant_conv(self.quantize.embedding(codes).transpose(1, 2).unflatten(2, grid))).float()

    def encode(self, images: Tensor) -> Tensor:
        """Encode images in [−1, 1] to int64 codes (B, h·w)."""
        self.config.check(images)
        latents = self.quant_conv(self.encoder(images)).flatten(2).transpose(1, 2)
        # One image at a time: the distances of a whole batch to every code would take gigabytes.
        return torch.stack([self.quantize.nearest(rows) for rows in latents])
