"""Training of the embedded KL autoencoder and of the masked model on its continuous tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..models.diffusion import STEPS, process
from ..models.mar import MAR, MARConfig
from ..models.tiny import kl
from ..models.tiny.kl import KLConfig, TinyKL
from ..models.tiny.mar import NAME, TINY_MAR
from .generators import ADAM_RATE, BATCH, PredictorTask
from .loops import Stateful
from .scene import stream
from .tokenizers import WholeTask, difference

KL_BATCH = 16
DIVERGENCE = 3e-3  # weight of the divergence from a standard normal distribution, in nats per number
LEAN = 1 / 3  # towards strong noise, where what a token should be is known from its surroundings alone: else they are learned late
READ = 1.0  # weight of the linear read-out's squared error
FEW, FEWEST = 0.6, 0.2  # in this share of the steps no more than this share of the tokens is known, as where a generation begins
HELD_OUT_REPEATS = 4  # times that a held-out token is noised
KNOWN = 36  # of 256: tokens known where the error of a token is measured
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
    steps = 4400
    decay = 0.54

    def __init__(
        self, tokenizer: Path, seed: int = 0, *, device: str = "cpu", config: MARConfig = TINY_MAR, batch: int = BATCH
    ) -> None:
        model = MAR(config).initialise(stream(seed, "initial weights"))
        start(model, stream(seed, "initial linear layers"))
        blocks = [p for name, p in model.named_parameters() if p.dim() == 2 and "_blocks." in name and "adaLN" not in name]
        super().__init__(model, kl.load(tokenizer, device=device), blocks, seed, device, batch)
        self.first = process(config.diffusion).timesteps[-1]  # step of the process that a generation begins at
        magnified = process((STEPS,)).tables["start_of_eps"] ** 2  # what a squared error of the noise is in the token
        self._weights = torch.from_numpy(magnified.clip(1, magnified[self.first])).float().to(device)
        self.reader = nn.Linear(config.dim, config.channels).to(device)
        nn.init.zeros_(self.reader.weight)
        nn.init.zeros_(self.reader.bias)
        self.adam.add_param_group({"params": list(self.reader.parameters()), "peak": ADAM_RATE})

    @property
    def parts(self) -> Mapping[str, Stateful]:
        return {**super().parts, "reader": self.reader}

    def tokens(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Drawn, not the mean: what follows a token must stand a token that is a little off."""
        tokens: Tensor = self.tokenizer.encode(images, generator)
        return tokens

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        """The masked diffusion loss of one batch, weighted, and the error of the read-out."""
        labels, latents = self.fresh(step)
        z, start = self.model.hidden(labels, latents, generator, masked=self._masked(generator))
        noise, index = self.model.noising(start, generator, lean=LEAN)
        squared, bound = self.model.diffloss.terms(z, start, noise, index)
        loss: Tensor = (self.weight(index) * squared + bound).mean() + READ * (self.reader(z).float() - start).square().mean()
        return loss

    def _masked(self, generator: torch.Generator) -> int | None:
        """How many tokens a step hides; None leaves it to the model."""
        few, share = torch.rand(2, generator=generator).tolist()
        count = self.model.config.tokens
        return count - int(FEWEST * share * count) if few < FEW else None

    def weight(self, index: Tensor) -> Tensor:
        """That of the squared error of the noise at steps ``index`` of the process: where noise prevails it becomes the error of the
        token, up to the step that a generation begins at; below, it stays that of the noise (Salimans and Ho, "Progressive
        Distillation", 2022, §4: truncated SNR)."""
        return self._weights[index]

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Mean squared errors on held-out scenes, under masks, times and noise that are always the same: of the predicted noise with true
        labels, and of the token that the first step of a generation predicts where few tokens are known, with the labels and without."""
        return {
            "noise_mse": round(self._mean(self._noise_error), 5),
            "token_mse": round(self._mean(partial(self._token_error, 0.0)), 5),
            "token_mse_unlabelled": round(self._mean(partial(self._token_error, 1.0)), 5),
        }

    def _mean(self, error: Callable[[Tensor, Tensor, torch.Generator], Tensor]) -> float:
        draws = torch.Generator().manual_seed(stream(self.seed, "held out noise"))
        errors = [error(labels, latents, draws) for labels, latents in self.held_out()]
        return sum(float(part.sum()) for part in errors) / sum(part.numel() for part in errors)

    def _noise_error(self, labels: Tensor, latents: Tensor, draws: torch.Generator) -> Tensor:
        z, start = (part.repeat(HELD_OUT_REPEATS, 1, 1) for part in self.model.hidden(labels, latents, draws, dropped=0.0))
        squared: Tensor = self.model.diffloss.terms(z, start, *self.model.noising(start, draws))[0]
        return squared

    def _token_error(self, dropped: float, labels: Tensor, latents: Tensor, draws: torch.Generator) -> Tensor:
        count = self.model.config.tokens
        z, start = self.model.hidden(labels, latents, draws, masked=count - count * KNOWN // 256, dropped=dropped)
        noise, drawn = self.model.noising(start, draws)
        index = torch.full_like(drawn, self.first)
        squared: Tensor = self.model.diffloss.terms(z, start, noise, index)[0]
        return self.weight(index) * squared


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
