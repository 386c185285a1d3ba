"""The decoder of Infinity's bitwise tokenizer: binary spherical quantization of residual maps.

A token is one integer: bit c is the sign of channel c. Module names are the published ones without the extra level ``conv`` or ``norm``
around each layer (:func:`official`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...cache.layout import Grid, squares
from .autoencoder import KLDecoder
from .maps import MapQuantizer
from .vq import ENCODER, Pyramid

UNUSED = (*ENCODER, "quantizer.lfq.mask", "quantize.lfq.mask")  # the latter two: powers of two
WRAPPED = (
    (r"\b(conv_in|conv_out|conv1|conv2|nin_shortcut|(?:up|down)sample\.conv)\.conv\.", r"\1."),
    (r"\b(norm1|norm2|norm_out)\.norm\.", r"\1."),
)


def official(name: str) -> str:
    """Return the module's name of a tensor for its name in a published file."""
    for pattern, replacement in WRAPPED:
        name = re.sub(pattern, replacement, name)
    return name


def packed_bits(bits: Tensor) -> Tensor:
    """Pack bits (…, n) into tokens (…) int64; n is at most 63."""
    return (bits.long() << torch.arange(bits.size(-1), device=bits.device)).sum(-1)


def bits_of(tokens: Tensor, count: int) -> Tensor:
    """Unpack tokens (…) int64 into bits (…, count)."""
    return tokens[..., None] >> torch.arange(count, device=tokens.device) & 1


class BitQuantizer(MapQuantizer):
    """Signs to feature maps and back, without learned parameters.

    ``scales``: rows and columns of the token maps, coarse to fine. Feature maps are (B, width, H·patch, W·patch) fp32 with H×W the last
    map. With ``patch`` 2 a token covers 2×2 positions and has four signs per channel.
    """

    def __init__(self, scales: Sequence[Grid], width: int, patch: int = 1) -> None:
        self.scales, self.width, self.patch = tuple(scales), width, patch

    @property
    def bits(self) -> int:
        return self.width * self.patch**2

    def empty(self, batch: int) -> Tensor:
        return torch.zeros(batch, self.width, *self.latents(-1))

    def latents(self, scale: int) -> Grid:
        """Return rows and columns of a scale's latents."""
        rows, columns = self.scales[scale]
        return rows * self.patch, columns * self.patch

    def codes(self, tokens: Tensor, scale: int) -> Tensor:
        """Return code vectors of a scale's tokens (B, h·w): (B, width, h·patch, w·patch).

        Each sign is divided by √width.
        """
        signs = (2 * bits_of(tokens, self.bits).float() - 1) / math.sqrt(self.width)
        return F.pixel_shuffle(signs.transpose(1, 2).unflatten(2, self.scales[scale]), self.patch)

    def add(self, f_hat: Tensor, codes: Tensor, scale: int) -> Tensor:
        return f_hat + resized(self.codes(codes, scale), self.latents(-1))

    def next_map(self, f_hat: Tensor, scale: int) -> Tensor:
        small = F.pixel_unshuffle(resized(f_hat, self.latents(scale)), self.patch)
        return small.flatten(2).transpose(1, 2)


def resized(x: Tensor, grid: Grid) -> Tensor:
    """Resize (B, C, h, w) bilinearly; unchanged if it has that size."""
    return x if x.shape[2:] == grid else F.interpolate(x, size=grid, mode="bilinear", align_corners=False)


@dataclass(frozen=True)
class BSQConfig(Pyramid):
    """Shape of a tokenizer. ``scales``, ``patch``: see :class:`BitQuantizer`; ``z``: channels of latents."""

    ch_mult: tuple[int, ...] = (1, 2, 4, 4, 4)
    scales: tuple[Grid, ...] = squares((1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64))
    z: int = 32
    patch: int = 1


class BSQ(nn.Module):
    """The decoder of Infinity's tokenizer: images (B, 3, H, W), factor·patch pixels per token side, fp32."""

    def __init__(self, config: BSQConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or BSQConfig()
        self.decoder = KLDecoder(c, c.z, nn.Identity)
        self.quantizer = BitQuantizer(c.scales, c.z, c.patch)

    def image(self, f_hat: Tensor) -> Tensor:
        """Decode a restored feature map to images (B, 3, H, W) in [−1, 1]."""
        return self.decoder(f_hat).clamp(-1, 1)

    def decode(self, tokens: Tensor) -> Tensor:
        """Decode tokens (B, N) to images in [−1, 1]."""
        return self.image(self.quantizer.restore(tokens))
