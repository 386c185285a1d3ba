"""The KL-16 autoencoder of latent diffusion (Rombach et al., CVPR 2022), as trained for MAR.

Names as in ``kl16.ckpt``. Tokens are raster ordered and scaled by ``SCALE``, to a deviation of about one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...core.errors import Unsupported
from .autoencoder import KLDecoder, KLEncoder
from .vq import AttnBlock, Pyramid

SCALE = 0.2325
UNUSED = ("loss.*",)  # the discriminator of its training, which some files contain


@dataclass(frozen=True)
class KLConfig(Pyramid):
    """Shape of an autoencoder. ``z``: channels of a token."""

    z: int = 16


class KL(nn.Module):
    """Images (B, 3, H, W) in [−1, 1] to tokens (B, N, z), one per ``factor``² pixels, and back, in fp32.

    The encoder attends after each block of the lowest resolution, the decoder only in the middle.
    """

    def __init__(self, config: KLConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or KLConfig()
        self.encoder = KLEncoder(c, 2 * c.z, AttnBlock)
        self.decoder = KLDecoder(c, c.z, AttnBlock, in_levels=False)
        self.quant_conv, self.post_quant_conv = nn.Conv2d(2 * c.z, 2 * c.z, 1), nn.Conv2d(c.z, c.z, 1)

    def moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the latents, each (B, z, h, w).

        The log variance is clamped to [−30, 20].
        """
        self.config.check(images)
        mean, log_variance = self.quant_conv(self.encoder(images)).chunk(2, 1)
        return mean, torch.exp(0.5 * log_variance.clamp(-30, 20))

    def encode(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Encode images to tokens (B, N, z): sampled with a generator, else the mean."""
        mean, deviation = self.moments(images)
        if generator is not None:
            mean = mean + deviation * torch.randn(mean.shape, generator=generator, device=generator.device).to(mean)
        return tokens_of(mean * SCALE)

    def image(self, latents: Tensor) -> Tensor:
        """Decode unscaled latents (B, z, h, w) to images, nominally in [−1, 1]."""
        return self.decoder(self.post_quant_conv(latents))

    def decode(self, tokens: Tensor) -> Tensor:
        """Decode tokens (B, N, z) of a square grid to images in [−1, 1]."""
        return self.image(grid_of(tokens) / SCALE).clamp(-1, 1)


def tokens_of(grid: Tensor) -> Tensor:
    """Flatten (B, C, h, w) to (B, h·w, C), row by row."""
    return grid.flatten(2).mT


def grid_of(tokens: Tensor) -> Tensor:
    """Reshape (B, h·h, C) to (B, C, h, h). Raises Unsupported if the tokens fill no square."""
    side = round(tokens.shape[1] ** 0.5) if tokens.ndim == 3 else 0
    if side == 0 or side**2 != tokens.shape[1]:
        raise Unsupported(f"Tokens of shape {tuple(tokens.shape)} fill no square.", remedy="Use (batch, side², channels).")
    return tokens.mT.unflatten(2, (side, side))
