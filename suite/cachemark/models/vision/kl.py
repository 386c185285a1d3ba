"""The decoder of latent diffusion's KL-16 autoencoder (Rombach et al., CVPR 2022), as in MAR.

Names as in ``kl16.ckpt``. Tokens are raster ordered and scaled by ``SCALE``, to a deviation of about one.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ...core.errors import Unsupported
from .autoencoder import KLDecoder
from .vq import ENCODER, AttnBlock, Pyramid

SCALE = 0.2325
UNUSED = (*ENCODER, "loss.*")  # the latter: the discriminator of its training, which some files contain


@dataclass(frozen=True)
class KLConfig(Pyramid):
    """Shape of a decoder. ``z``: channels of a token."""

    z: int = 16


class KL(nn.Module):
    """Tokens (B, N, z), one per ``factor``² pixels, to images (B, 3, H, W), in fp32."""

    def __init__(self, config: KLConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or KLConfig()
        self.decoder = KLDecoder(c, c.z, AttnBlock, in_levels=False)
        self.post_quant_conv = nn.Conv2d(c.z, c.z, 1)

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
