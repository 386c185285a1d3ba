"""Training of the bundled KL autoencoder and the masked model on its tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from cachemark.cache.timesteps import STEPS, respaced
from cachemark.models.catalogue.masked_models import TINY_MAR, TINY_NAME
from cachemark.models.diffusion import process
from cachemark.models.mar import MAR, MARConfig
from cachemark.models.tiny.tokenizers import KL_WEIGHTS, Sizes, drawn

from .generators import BATCH, MUON_RATE, PredictorTask
from .mar_loss import hidden, noising, terms
from .scene import stream
from .tokenizers import WholeTask, difference

KL_BATCH = 16
DIVERGENCE = 3e-3  # weight of the divergence from a standard normal distribution, in nats per number
LEAN = 1 / 3  # towards strong noise, where what a token should be is known from its surroundings alone: else they are learned late
READ = 30.0  # weight of the read-out's log squared error
LEAST = 8  # tokens that a step hides
NEAR, WIDE = 500, 2000  # up to the first step no more than half of the tokens are hidden, from the second on up to all
SPARSE = 3000  # step from which on a share of the steps shows few tokens: only there is the class learned, and only once the rest is
FEW, FEWEST = 0.3, 1 / 8  # that share, and the share of the tokens that those steps know at most
HELD_OUT_REPEATS = 4  # times that a held-out token is noised
KNOWN = (8, 36, 128)  # of 256: tokens known where the error of a token is measured
FASTEST, SLOWEST = 2.5, 0.2  # waves that places begin as, in radians a place
OFFSETS = ((0, -1), (0, 1), (-1, 0), (1, 0), (0, 0))  # rows and columns from a place to what a head begins to look at
QUIET = -5.0  # log variance at the start: noise as strong as the latents would drown what the decoder has to learn from


class LatentsTask(WholeTask):
    """A :class:`~cachemark.models.tiny.tokenizers.TinyKL`, with latent statistics by moving averages.

    They are accurate at the end, when the learning rate is small.
    """

    name = KL_WEIGHTS.name
    steps = 1400
    stored = KL_WEIGHTS
    size = KL_BATCH

    def __init__(self, seed: int = 0, *, device: str = "cpu", config: Sizes | None = None, batch: int | None = None) -> None:
        super().__init__(seed, device=device, config=config, batch=batch)
        with torch.no_grad():
            self.model.encoder[-1].bias[self.model.config.channels :] = QUIET

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        images = self.images(step)
        mean, log_variance = self.model.moments(images)
        latents = drawn(mean, log_variance, generator)
        self.follow(latents.detach(), (0, 2, 3))
        apart = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
        return difference(self.model.decoder(latents).float(), images) + DIVERGENCE * apart.mean()


class MaskedTask(PredictorTask):
    """The masked model on tokens of the autoencoder at ``tokenizer``."""

    name = TINY_NAME
    steps = 9000
    decay = 0.9
    rates = (MUON_RATE / 2, 2e-3)

    def __init__(self, tokenizer: Path, seed: int = 0, *, device: str = "cpu", config: MARConfig = TINY_MAR, batch: int = BATCH) -> None:
        model = MAR(config).initialise(stream(seed, "initial weights"))
        start(model, stream(seed, "initial linear layers"))
        blocks = [p for name, p in model.named_parameters() if p.dim() == 2 and "_blocks." in name and "adaLN" not in name]
        super().__init__(model, KL_WEIGHTS.load(tokenizer, device=device), blocks, seed, device, batch)
        self.first = process(respaced(config.diffusion)).timesteps[-1]  # step of the process that a generation begins at
        magnified = process(tuple(range(STEPS))).tables["start_of_eps"] ** 2  # what a squared error of the noise is in the token
        self._weights = torch.from_numpy(magnified.clip(1, magnified[self.first])).float().to(device)
        self.reader = nn.Linear(config.dim, config.channels).to(device)
        nn.init.zeros_(self.reader.weight)
        nn.init.zeros_(self.reader.bias)
        self.adam.add_param_group({"params": list(self.reader.parameters()), "peak": self.rates[1]})
        self.parts["reader"] = self.reader

    def tokens(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Sample tokens instead of the mean, so that the model tolerates slightly wrong tokens."""
        return self.tokenizer.encode(images, generator)

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        """Return the weighted masked diffusion loss of a batch, plus the read-out's log mean squared error.

        The log keeps steps with few known tokens, whose error is many times larger, from dominating.
        """
        labels, latents = self.fresh(step)
        z, start = hidden(self.model, labels, latents, generator, masked=self._masked(step, generator))
        noise, index = noising(start, generator, lean=LEAN)
        squared, bound = terms(self.model.diffloss, z, start, noise, index)
        return (self.weight(index) * squared + bound).mean() + READ * (self.reader(z).float() - start).square().mean().log()

    def _masked(self, step: int, generator: torch.Generator) -> int:
        """Return the number of tokens that a step hides: those unknown at some moment of a cosine schedule.

        At first half of the image is known, so that neighbors determine a token; later a fraction of the steps shows hardly any.
        """
        count, moment = self.model.config.tokens, float(torch.rand(1, generator=generator))
        if step >= SPARSE and float(torch.rand(1, generator=generator)) < FEW:
            return count - int(moment * FEWEST * count)
        reach = count * (1 + min(1.0, max(0.0, (step - NEAR) / (WIDE - NEAR)))) / 2
        return max(LEAST, math.ceil(reach * math.cos(math.pi / 2 * moment)))

    def weight(self, index: Tensor) -> Tensor:
        """Return the weight of the squared noise error at steps ``index`` of the process.

        Where noise prevails it becomes the error of the token, up to the first step of a generation; below, it stays the error of the
        noise (Salimans and Ho, "Progressive Distillation", 2022, §4: truncated SNR).
        """
        return self._weights[index]

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return mean squared errors on held-out scenes under fixed masks, times and noise.

        They are the error of the predicted noise with true labels, and of the token predicted in the head's first step with 8 and 36 of
        256 tokens known, with and without labels, and with 128 known.
        """
        return {
            "noise_mse": round(self._mean(self._noise_error), 5),
            **{f"token_mse_{known}": round(self._mean(partial(self._token_error, known, 0.0)), 5) for known in KNOWN},
            **{f"token_mse_{known}_unlabelled": round(self._mean(partial(self._token_error, known, 1.0)), 5) for known in KNOWN[:2]},
        }

    def _mean(self, error: Callable[[Tensor, Tensor, torch.Generator], Tensor]) -> float:
        draws = torch.Generator().manual_seed(stream(self.seed, "held out noise"))
        errors = [error(labels, latents, draws) for labels, latents in self.held_out()]
        return sum(float(part.sum()) for part in errors) / sum(part.numel() for part in errors)

    def _noise_error(self, labels: Tensor, latents: Tensor, draws: torch.Generator) -> Tensor:
        z, start = (part.repeat(HELD_OUT_REPEATS, 1, 1) for part in hidden(self.model, labels, latents, draws, dropped=0.0))
        return terms(self.model.diffloss, z, start, *noising(start, draws))[0]

    def _token_error(self, visible: int, dropped: float, labels: Tensor, latents: Tensor, draws: torch.Generator) -> Tensor:
        count = self.model.config.tokens
        z, start = hidden(self.model, labels, latents, draws, masked=count - count * visible // 256, dropped=dropped)
        noise, drawn = noising(start, draws)
        index = torch.full_like(drawn, self.first)
        return self.weight(index) * terms(self.model.diffloss, z, start, noise, index)[0]


def start(model: MAR, seed: int) -> None:
    """Initialize as the authors do, but with position waves and heads that attend to neighbors.

    Linear layers by Xavier without biases; the head's modulation and last layer at zero.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
            if "adaLN" in name or "final_layer" in name:
                nn.init.zeros_(layer.weight)
            elif "time_embed" not in name:
                nn.init.xavier_uniform_(layer.weight, generator=generator)
    with torch.no_grad():
        for table in (model.encoder_pos_embed_learned, model.decoder_pos_embed_learned, model.diffusion_pos_embed_learned):
            table[0, -model.config.tokens :] = waves(model.config.grid, model.config.dim)
        look_around(model)


def frequencies(dim: int) -> Tensor:
    """Return the frequencies of a position table in radians per position: a quarter of ``dim``."""
    return FASTEST * (SLOWEST / FASTEST) ** (torch.arange(dim // 4) / (dim // 4 - 1))


def waves(grid: int, dim: int) -> Tensor:
    """Return sine and cosine of row and column at each frequency, (grid², dim)."""
    angles = torch.arange(grid)[:, None] * frequencies(dim)
    axis = torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
    return torch.cat((axis[:, None].expand(-1, grid, -1), axis[None].expand(grid, -1, -1)), 2).flatten(0, 1)


def look_around(model: MAR) -> None:
    """Initialize all heads to attend to a position's neighbors and itself (:data:`OFFSETS`).

    The product of query and key is then a sum of cosines of the distance to that neighbor.
    """
    c = model.config
    width = c.dim // c.heads
    rates = frequencies(c.dim)
    chosen = torch.linspace(0, len(rates) - 1, width // 4).round().long()
    for block in (*model.encoder_blocks, *model.decoder_blocks):
        query, key, _ = block.attn.qkv.weight.view(3, c.heads, width, c.dim)
        for head in range(c.heads):
            query[head] = key[head] = 0
            for axis, offset in enumerate(OFFSETS[head % len(OFFSETS)]):
                rows = axis * width // 2 + 2 * torch.arange(width // 4)
                sine = axis * c.dim // 2 + 2 * chosen
                turn = rates[chosen] * offset
                key[head, rows, sine] = key[head, rows + 1, sine + 1] = 1
                query[head, rows, sine] = query[head, rows + 1, sine + 1] = turn.cos()
                query[head, rows, sine + 1], query[head, rows + 1, sine] = turn.sin(), -turn.sin()
