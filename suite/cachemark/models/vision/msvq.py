"""VAR's multi-scale residual quantizer (Tian et al., NeurIPS 2024, §3.1, Algorithms 1 and 2).

An image is a stack of token maps, coarse to fine. Each adds its residual to one feature map at full resolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...cache.layout import squares
from .autoencoder import JointAttnBlock, KLDecoder
from .maps import MapQuantizer
from .vq import ENCODER, Pyramid

UNUSED = (*ENCODER, "quantize.ema_vocab_hit_SV")  # the latter: how often each code was used in training


class Phis(nn.Module):
    """A few convolutions shared by all scales. Parameter names as published."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.qresi_ls = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(count))


class MultiScaleQuantizer(MapQuantizer, nn.Module):
    """Codebook, and the convolutions φ that smooth the contribution of a token map.

    ``sides``: of the token maps, coarse to fine; N is the sum of their squares and P the last side. Tokens run scale by scale, row by
    row. Feature maps are (B, width, P, P) fp32. φ(h) = (1 − r)·h + r·conv(h), on the upsampled map.
    """

    def __init__(self, sides: Sequence[int], codes: int, width: int, *, phis: int = 4, ratio: float = 0.5) -> None:
        super().__init__()
        self.sides, self.codes, self.width, self.ratio = tuple(sides), codes, width, ratio
        self.scales = squares(sides)
        self.embedding = nn.Embedding(codes, width)
        self.quant_resi = Phis(width, phis)
        self._phi = [nearest_phi(i, len(self.sides), phis) for i in range(len(self.sides))]

    def empty(self, batch: int) -> Tensor:
        return self.embedding.weight.new_zeros(batch, self.width, self.sides[-1], self.sides[-1], dtype=torch.float32)

    def add(self, f_hat: Tensor, codes: Tensor, scale: int) -> Tensor:
        return f_hat + self.contribution(codes, scale)

    def next_map(self, f_hat: Tensor, scale: int) -> Tensor:
        """Resize a feature map to a scale, by area: (B, width, P, P) to (B, side², width)."""
        side = self.sides[scale]
        small = f_hat if f_hat.shape[-1] == side else F.interpolate(f_hat, size=(side, side), mode="area")
        return small.flatten(2).transpose(1, 2)

    def teacher(self, tokens: Tensor) -> Tensor:
        """Return the inputs of scales 2, 3, … for tokens (B, N): (B, N − 1, width)."""
        parts, f_hat, maps = self.split(tokens), self.empty(len(tokens)), []
        for scale, part in enumerate(parts[:-1]):
            f_hat = self.add(f_hat, part, scale)
            maps.append(self.next_map(f_hat, scale + 1))
        return torch.cat(maps, 1)

    @torch.no_grad()
    def quantise(self, f: Tensor) -> Tensor:
        """Quantize latents (B, width, P, P) to tokens (B, N) int64, each scale the residual of the coarser."""
        residual, tokens = f.float(), []
        for scale in range(len(self.sides)):
            codes = self.nearest(self.next_map(residual, scale))
            residual = residual - self.contribution(codes, scale)
            tokens.append(codes)
        return torch.cat(tokens, 1)

    def nearest(self, vectors: Tensor) -> Tensor:
        """Map vectors (B, n, width) to the nearest codes (B, n); ties go to the first code."""
        with torch.autocast(vectors.device.type, enabled=False):  # in bf16 the nearest of close neighbours would be a matter of luck
            flat, book = vectors.float(), self.embedding.weight.float()
            return (flat.square().sum(-1, keepdim=True) + book.square().sum(1) - 2 * flat @ book.T).argmin(-1)

    def spread(self, codes: Tensor, scale: int) -> Tensor:
        """Return code vectors of a scale at full resolution, before φ: (B, width, P, P)."""
        side = self.sides[scale]
        h = F.embedding(codes, self.embedding.weight).float().transpose(1, 2).unflatten(2, (side, side))
        if side == self.sides[-1]:
            return h
        return F.interpolate(h, size=(self.sides[-1],) * 2, mode="bicubic", align_corners=False)

    def contribution(self, codes: Tensor, scale: int) -> Tensor:
        """Return φ of the upsampled code vectors of a scale, (B, width, P, P)."""
        h = self.spread(codes, scale)
        return h * (1 - self.ratio) + self.quant_resi.qresi_ls[self._phi[scale]](h) * self.ratio


def nearest_phi(scale: int, scales: int, phis: int) -> int:
    """Return the shared convolution of a scale: the one whose tick is nearest to scale/(scales − 1).

    Two ticks may be equally near (scales 3 and 8 of 10). Rounding in double precision then decides, for the published sizes in favor of
    the later one; this computes it as the authors do.
    """
    if scales == 1:
        return 0
    margin = 1 / 3 / phis if phis == 4 else 1 / 2 / phis
    ticks = [margin + i * ((1 - margin - margin) / max(phis - 1, 1)) for i in range(phis - 1)] + [1 - margin]
    far = [abs(tick - scale / (scales - 1)) for tick in ticks]
    return far.index(min(far))


@dataclass(frozen=True)
class MSVQConfig(Pyramid):
    """Shape of a tokenizer. ``sides``: coarse to fine; ``z``: channels of latents and code vectors."""

    ch: int = 160
    sides: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16)
    z: int = 32
    codes: int = 4096
    phis: int = 4


class MSVQ(nn.Module):
    """The decoder of VAR's tokenizer, with the names of ``vae_ch160v4096z32.pth``; runs in fp32.

    Images are (B, 3, H, W) of side factor·P.
    """

    def __init__(self, config: MSVQConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or MSVQConfig()
        self.decoder = KLDecoder(c, c.z, JointAttnBlock)
        self.quantize = MultiScaleQuantizer(c.sides, c.codes, c.z, phis=c.phis)
        self.post_quant_conv = nn.Conv2d(c.z, c.z, 3, padding=1)

    def image(self, f_hat: Tensor) -> Tensor:
        """Decode a restored feature map (B, z, P, P) to images (B, 3, H, W) in [−1, 1]."""
        return self.decoder(self.post_quant_conv(f_hat)).clamp(-1, 1)

    def decode(self, tokens: Tensor) -> Tensor:
        """Decode tokens (B, N) to images in [−1, 1]."""
        return self.image(self.quantize.restore(tokens))
