"""Training of the embedded KL autoencoder and of the masked model on its continuous tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ..models.mar import MAR, MARConfig
from ..models.tiny import kl
from ..models.tiny.kl import KLConfig, TinyKL
from ..models.tiny.mar import NAME, TINY_MAR
from .generators import BATCH, PredictorTask
from .scene import stream
from .tokenizers import WholeTask, difference

KL_BATCH = 16
DIVERGENCE = 3e-3  # weight of the divergence from a standard normal distribution, in nats per number
REPEATS = 1  # times that a token is noised in a step; the authors' 4, but here the head costs as much as the transformer
LEAN = 1 / 3  # towards strong noise, where what a token should be is known from its surroundings alone: else they are learned late
QUIET = -5.0  # log variance at the start: noise as strong as the latents would drown what the decoder has to learn from
FOLLOW = 0.02  # how fast the statistics of the latents follow those of a batch


class LatentsTask(WholeTask):
    """Trains a :class:`~cachemark.models.tiny.kl.TinyKL`. The statistics of its latents follow by moving averages: at the end, when
    the learning rate is small, they are those of the finished encoder."""

    name = kl.NAME
    steps = 1400

    def __init__(self, seed: int = 0, *, device: str = "cpu", config: KLConfig | None = None, batch: int = KL_BATCH) -> None:
        super().__init__(lambda: TinyKL(config), seed, device, batch)
        with torch.no_grad():
            self.model.encoder[-1].bias[self.model.config.channels :] = QUIET

    def metadata(self) -> dict[str, str]:
        return kl.metadata(self.model.config)

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        """Loss of one batch of fresh scenes; moves the statistics on the way."""
        images = self.images(step)
        mean, log_variance = self.model.moments(images)
        latents = kl.drawn(mean, log_variance, generator)
        self._follow(latents.detach())
        apart = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
        return difference(self.model.decoder(latents).float(), images) + DIVERGENCE * apart.mean()

    @torch.no_grad()
    def _follow(self, latents: Tensor) -> None:
        self.model.centre.lerp_(latents.mean((0, 2, 3)), FOLLOW)
        self.model.deviation.lerp_(latents.std((0, 2, 3)), FOLLOW)


class MaskedTask(PredictorTask):
    """The masked model, a :class:`~cachemark.models.mar.MAR`, on tokens drawn by the autoencoder at ``tokenizer``."""

    name = NAME
    steps = 3500

    def __init__(
        self, tokenizer: Path, seed: int = 0, *, device: str = "cpu", config: MARConfig = TINY_MAR, batch: int = BATCH
    ) -> None:
        model = MAR(config).initialise(stream(seed, "initial weights"))
        start(model, stream(seed, "initial linear layers"))
        blocks = [p for name, p in model.named_parameters() if p.dim() == 2 and "_blocks." in name and "adaLN" not in name]
        super().__init__(model, kl.load(tokenizer, device=device), blocks, seed, device, batch)

    def tokens(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Drawn, not the mean: what follows a token must stand a token that is a little off."""
        tokens: Tensor = self.tokenizer.encode(images, generator)
        return tokens

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        """The masked diffusion loss of one batch; the model drops labels itself."""
        loss: Tensor = self.model.loss(*self.fresh(step), generator, repeats=REPEATS, lean=LEAN)
        return loss

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Mean squared error of the predicted noise on held-out scenes with their true labels, under masks, times and noise that are
        always the same."""
        draws = torch.Generator().manual_seed(stream(self.seed, "held out noise"))
        batches = [self.model.terms(labels, latents, draws, dropped=0.0)[0] for labels, latents in self.held_out()]
        return {"noise_mse": round(sum(float(squared.sum()) for squared in batches) / sum(squared.numel() for squared in batches), 5)}


def start(model: MAR, seed: int) -> None:
    """Begin as the authors do: linear layers by Xavier, no biases, and the head's modulation and last layer at zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
            if "adaLN" in name or "final_layer" in name:
                nn.init.zeros_(layer.weight)
            elif "time_embed" not in name:
                nn.init.xavier_uniform_(layer.weight, generator=generator)
