"""Decoders of the convolutional tokenizers VQ-16 and VQ-8 (LlamaGen, arXiv 2406.06525).

Module names as in the published checkpoints. It should run in fp32 even with a bf16 transformer. It is equivalent to the authors' code,
with PyTorch's own attention and code vectors normalized after the look-up. Encoders, which generation does not need, are not loaded.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from ...core.errors import Unsupported
from .. import entries

GROUPS = 32
GROUP_EPS = 1e-6
ENCODER = ("encoder.*", "quant_conv.*")  # of published files of image tokenizers: only for reading images
UNUSED = (*ENCODER, "quantize.codebook_used")  # the latter: how often each code was used in training
WRAPPERS = ("model", *entries.WRAPPERS)  # the authors' samplers read the raw weights, their reconstruction script the averaged ones

Attend = Callable[[int], nn.Module]  # makes an attention block for that many channels; `nn.Identity` makes none


@dataclass(frozen=True)
class Pyramid:
    """Widths of a decoder's levels.

    ``ch_mult``: channel multiples from the highest resolution to the lowest; each level has half the resolution of the one before.
    """

    ch: int = 128
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)
    num_res_blocks: int = 2

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level, from the highest resolution to the lowest."""
        return tuple(self.ch * m for m in self.ch_mult)

    @property
    def factor(self) -> int:
        """Pixels per latent along one side."""
        return 2 ** (len(self.ch_mult) - 1)


@dataclass(frozen=True)
class VQConfig(Pyramid):
    """Shape of a tokenizer."""

    z_channels: int = 256
    codebook_size: int = 16384
    codebook_dim: int = 8


VQ16 = VQConfig()


def norm(channels: int) -> nn.GroupNorm:
    """Return the normalization of all these decoders."""
    return nn.GroupNorm(GROUPS, channels, eps=GROUP_EPS)


def conv(c_in: int, c_out: int, size: int = 3) -> nn.Conv2d:
    """Return a convolution that keeps the resolution."""
    return nn.Conv2d(c_in, c_out, size, padding=size // 2)


class ResBlock(nn.Module):
    """Two normalized convolutions with a shortcut: (B, c_in, H, W) to (B, c_out, H, W)."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(c_in), conv(c_in, c_out)
        self.norm2, self.conv2 = norm(c_out), conv(c_out, c_out)
        self.nin_shortcut = nn.Identity() if c_in == c_out else conv(c_in, c_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return self.nin_shortcut(x) + h


class AttnBlock(nn.Module):
    """Residual attention over all H·W positions, with one head of width C."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)
        self.q, self.k, self.v = (conv(channels, channels, 1) for _ in range(3))
        self.proj_out = conv(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (part(h).flatten(2).transpose(1, 2).unsqueeze(1) for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v)  # (B, 1, HW, C); its own scale is C^-1/2
        return x + self.proj_out(mixed.squeeze(1).transpose(1, 2).reshape(x.shape))


class Upsample(nn.Module):
    """Nearest-neighbor upsampling by 2, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = conv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class VQLevel(nn.Module):
    """All blocks of one resolution; absent parts are identities, which add no key to the state dict."""

    def __init__(self, c_in: int, c_out: int, depth: int, attend: Attend, *, upsample: bool) -> None:
        super().__init__()
        self.res = nn.ModuleList(ResBlock(c_in if i == 0 else c_out, c_out) for i in range(depth))
        self.attn = nn.ModuleList(attend(c_out) for _ in range(depth))
        self.upsample = Upsample(c_out) if upsample else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for res, attn in zip(self.res, self.attn, strict=True):
            x = attn(res(x))
        return self.upsample(x)


def middle(channels: int, attend: Attend, names: Sequence[str]) -> nn.Sequential:
    """Build two residual blocks with attention between them, under their names in published files."""
    parts = ResBlock(channels, channels), attend(channels), ResBlock(channels, channels)
    return nn.Sequential(OrderedDict(zip(names, parts, strict=True)))


class VQDecoder(nn.Module):
    """Latents (B, z, h, w) to pixels (B, 3, f·h, f·w). ``conv_blocks.0`` is the lowest resolution."""

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        widths, last = config.widths[::-1], len(config.widths) - 1
        self.conv_in = conv(config.z_channels, widths[0])
        self.mid = middle(widths[0], AttnBlock, "012")
        self.conv_blocks = nn.Sequential(*(
            VQLevel(c_in, c_out, config.num_res_blocks + 1, AttnBlock if i == 0 else nn.Identity, upsample=i != last)
            for i, (c_in, c_out) in enumerate(zip((widths[0], *widths), widths, strict=False))
        ))
        self.norm_out = norm(widths[-1])
        self.conv_out = conv(widths[-1], 3)

    def forward(self, latents: Tensor) -> Tensor:
        x = self.conv_blocks(self.mid(self.conv_in(latents)))
        return self.conv_out(F.silu(self.norm_out(x)))


class Codebook(nn.Module):
    """The table of code vectors. ``unit``: they are normalized to unit length when used."""

    def __init__(self, codes: int, width: int, *, unit: bool) -> None:
        super().__init__()
        self.unit, self.embedding = unit, nn.Embedding(codes, width)

    def forward(self, codes: Tensor, grid: tuple[int, int]) -> Tensor:
        """Map raster-ordered codes (B, h·w) to vectors (B, width, h, w). Raises Unsupported."""
        if codes.ndim != 2 or codes.shape[1] != grid[0] * grid[1]:
            raise Unsupported(f"Codes of shape {tuple(codes.shape)} do not fill a grid of {grid[0]}×{grid[1]}.",
                              remedy=f"Use a batch of {grid[0] * grid[1]} codes each, or the grid that they came from.")
        vectors = self.embedding(codes)
        return (F.normalize(vectors, dim=-1) if self.unit else vectors).transpose(1, 2).unflatten(2, grid)


class CodeDecoder(nn.Module):
    """Base of image tokenizers with a codebook: raster-ordered codes to images. ``unit``: see Codebook."""

    def __init__(self, config: VQConfig, decoder: nn.Module, *, unit: bool) -> None:
        super().__init__()
        self.config, self.decoder = config, decoder
        self.quantize = Codebook(config.codebook_size, config.codebook_dim, unit=unit)
        self.post_quant_conv = conv(config.codebook_dim, config.z_channels, 1)

    def decode(self, codes: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Decode codes (B, h·w) on ``grid`` = (h, w), by default a square, to images (B, 3, f·h, f·w).

        Images are fp32, nominally in [−1, 1] and not clamped. Raises Unsupported if the codes do not fill the grid.
        """
        return self.decoder(self.post_quant_conv(self.quantize(codes, grid or (math.isqrt(codes.shape[-1]),) * 2))).float()


class VQ(CodeDecoder):
    """LlamaGen's tokenizer."""

    def __init__(self, config: VQConfig = VQ16) -> None:
        super().__init__(config, VQDecoder(config), unit=True)
