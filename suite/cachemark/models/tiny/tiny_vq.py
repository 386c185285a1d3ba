"""A small convolutional VQ tokenizer for the embedded data: 64x64 pictures to a 16x16 grid of 512 codes and back.

All heavy work is done at the resolution of the grid, so that it trains in minutes on a CPU. The encoder folds each patch of
4x4 pixels into channels; the decoder unfolds in two steps of 2. Straight-through gradients and the moving averages of the
codebook belong to training (:mod:`cachemark.tools.train.tokenizers`), not to this class.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ...core.errors import BadCheckpoint
from .. import checkpoints

C = TypeVar("C")

NAME = "tiny-vq"
GROUPS = 8


@dataclass(frozen=True)
class Sizes:
    """Sizes of encoder and decoder. ``patch`` pixels a token along each side (a multiple of 2)."""

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
    """Pre-activation residual block at constant width: (B, C, h, w) to the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(GROUPS, width), nn.Conv2d(width, width, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(GROUPS, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(hidden)))


def encoder(c: Sizes) -> nn.Sequential:
    """Images (B, 3, H, W) to latents (B, channels, H/patch, W/patch)."""
    return nn.Sequential(
        nn.PixelUnshuffle(c.patch), nn.Conv2d(3 * c.patch**2, c.width, 3, padding=1), *(TinyBlock(c.width) for _ in range(c.blocks)),
        nn.GroupNorm(GROUPS, c.width), nn.SiLU(), nn.Conv2d(c.width, c.channels, 1),
    )


def decoder(c: Sizes) -> nn.Sequential:
    """Latents (B, channels, h, w) to images (B, 3, h·patch, w·patch), not clamped."""
    half = c.patch // 2
    return nn.Sequential(
        nn.Conv2d(c.channels, c.width, 3, padding=1), *(TinyBlock(c.width) for _ in range(c.blocks)),
        nn.GroupNorm(GROUPS, c.width), nn.SiLU(), nn.Conv2d(c.width, c.shallow * half**2, 1), nn.PixelShuffle(half),
        nn.Conv2d(c.shallow, 4 * c.shallow, 3, padding=1), nn.SiLU(), nn.PixelShuffle(2),
        nn.Conv2d(c.shallow, 3, 3, padding=1),
    )


class TinyVQ(nn.Module):
    """Encoder, codebook (512, 8) and decoder. Images are RGB in [-1, 1]; codes are row-major over the grid."""

    def __init__(self, config: TinyVQConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or TinyVQConfig()
        self.encoder = encoder(c)
        self.codebook = nn.Parameter(torch.randn(c.codes, c.channels), requires_grad=False)
        self.decoder = decoder(c)

    def quantise(self, z: Tensor) -> Tensor:
        """Nearest code of each latent vector: z (B, C, h, w) to codes (B, h*w) int64; the first one wins a tie."""
        with torch.autocast(z.device.type, enabled=False):  # in bf16 the nearest of close neighbours would be a matter of luck
            flat, book = z.flatten(2).transpose(1, 2).float(), self.codebook.float()
            return (book.square().sum(1) - 2 * flat @ book.T).argmin(-1)

    def encode(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) with H and W multiples of ``patch`` to codes (B, H*W/patch²) int64."""
        return self.quantise(self.encoder(images))

    def decode(self, codes: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Codes (B, N) on ``grid`` = (h, w), a square if not given, to images (B, 3, h*patch, w*patch), not clamped."""
        h, w = grid or (math.isqrt(codes.shape[1]),) * 2
        if codes.dim() != 2 or h * w != codes.shape[1]:
            raise ValueError(f"codes of shape {tuple(codes.shape)} do not fill a grid of {h}x{w}")
        z = F.embedding(codes.long(), self.codebook)
        return self.decoder(z.transpose(1, 2).reshape(codes.shape[0], -1, h, w))

    @property
    def language(self) -> str:
        """Identity of the codes' meaning, see :func:`language_of`."""
        return language_of(self)


def language_of(model: nn.Module) -> str:
    """SHA-256 of all but the decoder, as stored: models of one language make equal codes, whatever their decoders."""
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("decoder.")}
    parts = [name.encode() + state[name].half().cpu().contiguous().numpy().tobytes() for name in sorted(state)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def load(path: str | Path, *, device: str | torch.device = "cpu") -> TinyVQ:
    """Read a :class:`TinyVQ` written by :mod:`cachemark.tools.train`: stored in fp16, returned in fp32, in evaluation mode.

    Raises :class:`~cachemark.core.errors.BadCheckpoint` for a file that is no safetensors file, does not say that it holds this
    model, or lacks a tensor.
    """
    config = stated(path, NAME, TinyVQConfig)
    return checkpoints.load(lambda: TinyVQ(config), path, dtype=torch.float32, device=device)


def check(path: str | Path) -> None:
    """Raise what :func:`load` would raise for this file, without reading its weights."""
    config = stated(path, NAME, TinyVQConfig)
    checkpoints.check(lambda: TinyVQ(config), path)


def stated(path: str | Path, name: str, config: Callable[..., C]) -> C:
    """The sizes that a weights file of the embedded model ``name`` states about itself, made into its ``config``; or BadCheckpoint."""
    remedy = f"Give a .safetensors file written by `python -m cachemark.tools.train {name}`."
    if not Path(path).is_file():
        raise BadCheckpoint(f"{str(path)!r} is not a file.", remedy=remedy)
    try:
        with safe_open(str(path), framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("cachemark", "{}"))
        if about.get("model") != name:
            raise ValueError(f"it says it is {about.get('model', 'nothing')!r}")
        return config(**json.loads(about["config"]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{str(path)!r} holds no {name} weights: {error}.", remedy=remedy) from error


def metadata(config: TinyVQConfig) -> dict[str, str]:
    """The metadata that a weights file of this model must have."""
    return {"model": NAME, "config": json.dumps(asdict(config), sort_keys=True)}
