"""The continuous twin of :mod:`~cachemark.models.tiny.tiny_vq`: 64×64 pictures to a 16×16 grid of vectors and back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from .. import checkpoints
from ..vision.kl import grid_of, tokens_of
from . import tiny_vq as vq

NAME = "tiny-kl"


@dataclass(frozen=True)
class TinyKLConfig(vq.Sizes):
    """Sizes of a :class:`TinyKL`."""


class TinyKL(nn.Module):
    """Encoder and decoder with a normal distribution between them. Images are RGB in [−1, 1]; tokens run row by row.

    ``centre`` and ``deviation`` (channels,) are those of the latents of training: tokens have a mean of 0 and a variance of 1 in
    each channel, which the diffusion that predicts them expects.
    """

    centre: Tensor
    deviation: Tensor

    def __init__(self, config: TinyKLConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or TinyKLConfig()
        self.encoder, self.decoder = vq.encoder(replace(c, channels=2 * c.channels)), vq.decoder(c)
        self.register_buffer("centre", torch.zeros(c.channels))
        self.register_buffer("deviation", torch.ones(c.channels))

    def moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of the latents, each (B, channels, h, w), not scaled. The log variance is clamped to [−30, 20]."""
        mean, log_variance = self.encoder(images).float().chunk(2, 1)
        return mean, log_variance.clamp(-30, 20)

    def encode(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Images (B, 3, H, W) with H and W multiples of ``patch`` to tokens (B, N, channels) fp32: drawn from their distribution
        with a generator, as for training, else its mean."""
        mean, log_variance = self.moments(images)
        latents = mean if generator is None else drawn(mean, log_variance, generator)
        return (tokens_of(latents) - self.centre) / self.deviation

    def decode(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, channels) of a square grid to images (B, 3, H, W), not clamped."""
        return self.decoder(grid_of(tokens * self.deviation + self.centre))

    @property
    def language(self) -> str:
        """Identity of the tokens' meaning, see :func:`~cachemark.models.tiny.tiny_vq.language_of`."""
        return vq.language_of(self)


def drawn(mean: Tensor, log_variance: Tensor, generator: torch.Generator) -> Tensor:
    """Latents drawn from normal distributions, of the shape of their means."""
    noise = torch.randn(mean.shape, generator=generator, device=generator.device).to(mean)
    return mean + torch.exp(0.5 * log_variance) * noise


def load(path: str | Path, *, device: str | torch.device = "cpu") -> TinyKL:
    """Read a :class:`TinyKL` written by :mod:`cachemark.tools.train`: stored in fp16, returned in fp32, in evaluation mode. Raises
    :class:`~cachemark.core.errors.BadCheckpoint` for any other file."""
    return checkpoints.load(_build(path), path, dtype=torch.float32, device=device)


def check(path: str | Path) -> None:
    """Raise what :func:`load` would raise for this file, without reading its weights."""
    checkpoints.check(_build(path), path)


def _build(path: str | Path) -> partial[TinyKL]:
    return partial(TinyKL, vq.stated(path, NAME, TinyKLConfig))


def metadata(config: TinyKLConfig) -> dict[str, str]:
    """The metadata that a weights file of this model must have."""
    return {"model": NAME, "config": json.dumps(asdict(config), sort_keys=True)}
