"""Small image tokenizers for procedural scenes: of codes, of token maps, and of vectors.

All heavy work is at the resolution of the grid, so they train in minutes on a CPU. The encoder folds patches of 4×4 pixels into channels;
the decoder unfolds in two steps of 2. Training is in :mod:`tools.train.tokenizers` and :mod:`tools.train.continuous`.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..vision.kl import grid_of, tokens_of
from ..vision.msvq import MultiScaleQuantizer
from .stored import BundledWeights

GROUPS = 8


@dataclass(frozen=True)
class Sizes:
    """Sizes of encoder and decoder. ``patch``: pixels per token along a side, a multiple of 2."""

    channels: int = 8
    width: int = 96
    blocks: int = 3
    patch: int = 4
    shallow: int = 24


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


class Tokenizer(nn.Module):
    """An image tokenizer whose decoder is called ``decoder``."""

    @property
    def language(self) -> str:
        """The SHA-256 of everything but the decoder: equal for tokenizers that produce equal tokens."""
        state = {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("decoder.")}
        parts = [name.encode() + state[name].half().cpu().contiguous().numpy().tobytes() for name in sorted(state)]
        return hashlib.sha256(b"".join(parts)).hexdigest()


@dataclass(frozen=True)
class TinyVQConfig(Sizes):
    """Sizes of a :class:`TinyVQ`."""

    codes: int = 512


class TinyVQ(Tokenizer):
    """A small VQ tokenizer for procedural scenes: 64×64 images to a 16×16 grid of 512 codes and back.

    Encoder, codebook (512, 8) and decoder. Images are RGB in [-1, 1]; codes are row-major.
    """

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


@dataclass(frozen=True)
class TinyMSVQConfig(TinyVQConfig):
    """Sizes of a :class:`TinyMSVQ`. ``sides``: of the maps; the last is the encoder's grid."""

    channels: int = 16
    sides: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)


class TinyMSVQ(Tokenizer):
    """The multi-scale counterpart of tiny-vq: 64×64 images to token maps of 1×1 … 16×16 and back.

    Encoder, multi-scale quantizer and decoder. Images are RGB in [−1, 1].
    """

    def __init__(self, config: TinyMSVQConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or TinyMSVQConfig()
        self.encoder, self.decoder = encoder(c), decoder(c)
        self.quantizer = MultiScaleQuantizer(c.sides, c.codes, c.channels)
        self.quantizer.embedding.weight.requires_grad_(False)

    def encode(self, images: Tensor) -> Tensor:
        """Encode images (B, 3, H, W) of side ``patch`` times the last side to tokens (B, N) int64."""
        return self.quantizer.quantise(self.encoder(images))

    def decode(self, tokens: Tensor) -> Tensor:
        """Decode tokens (B, N) to images (B, 3, H, W), not clamped."""
        return self.image(self.quantizer.restore(tokens))

    def image(self, f_hat: Tensor) -> Tensor:
        """Decode a feature map (B, channels, h, w) to images, not clamped."""
        return self.decoder(f_hat)


class TinyKL(Tokenizer):
    """The continuous counterpart of tiny-vq: 64×64 images to a 16×16 grid of vectors and back.

    Encoder and decoder with a normal distribution between them. Images are RGB in [−1, 1].
    ``centre`` and ``deviation`` (channels,) standardize the latents of training, as the diffusion head expects.
    """

    centre: Tensor
    deviation: Tensor

    def __init__(self, config: Sizes | None = None) -> None:
        super().__init__()
        self.config = c = config or Sizes()
        self.encoder, self.decoder = encoder(replace(c, channels=2 * c.channels)), decoder(c)
        self.register_buffer("centre", torch.zeros(c.channels))
        self.register_buffer("deviation", torch.ones(c.channels))

    def moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log variance of the latents, each (B, channels, h, w), not scaled.

        The log variance is clamped to [−30, 20].
        """
        mean, log_variance = self.encoder(images).float().chunk(2, 1)
        return mean, log_variance.clamp(-30, 20)

    def encode(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Encode images (B, 3, H, W) to tokens (B, N, channels) fp32: sampled with a generator, else the mean.

        H and W are multiples of ``patch``.
        """
        mean, log_variance = self.moments(images)
        latents = mean if generator is None else drawn(mean, log_variance, generator)
        return (tokens_of(latents) - self.centre) / self.deviation

    def decode(self, tokens: Tensor) -> Tensor:
        """Decode tokens (B, N, channels) of a square grid to images (B, 3, H, W), not clamped."""
        return self.decoder(grid_of(tokens * self.deviation + self.centre))


def drawn(mean: Tensor, log_variance: Tensor, generator: torch.Generator) -> Tensor:
    """Sample latents from normal distributions."""
    noise = torch.randn(mean.shape, generator=generator, device=generator.device).to(mean)
    return mean + torch.exp(0.5 * log_variance) * noise


VQ_WEIGHTS = BundledWeights("tiny-vq", TinyVQ, TinyVQConfig)
MSVQ_WEIGHTS = BundledWeights("tiny-msvq", TinyMSVQ, lambda sides, **sizes: TinyMSVQConfig(sides=tuple(sides), **sizes))
KL_WEIGHTS = BundledWeights("tiny-kl", TinyKL, Sizes)
