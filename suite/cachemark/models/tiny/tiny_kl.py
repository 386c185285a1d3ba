"""The continuous counterpart of tiny-vq: 64×64 images to a 16×16 grid of vectors and back."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..vision.kl import grid_of, tokens_of
from . import tiny_vq as vq
from .stored import BundledWeights, Tokenizer

NAME = "tiny-kl"


class TinyKL(Tokenizer):
    """Encoder and decoder with a normal distribution between them. Images are RGB in [−1, 1].

    ``centre`` and ``deviation`` (channels,) standardize the latents of training, as the diffusion head expects.
    """

    centre: Tensor
    deviation: Tensor

    def __init__(self, config: vq.Sizes | None = None) -> None:
        super().__init__()
        self.config = c = config or vq.Sizes()
        self.encoder, self.decoder = vq.encoder(replace(c, channels=2 * c.channels)), vq.decoder(c)
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


files = BundledWeights(NAME, TinyKL, vq.Sizes)
load, check, metadata = files.load, files.check, files.metadata
