"""Training loss of MAR (Li et al., 2024, §3.4): masked tokens, noise, and both parts of the diffusion loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cachemark.cache.masked_layout import MaskedStep, take
from cachemark.cache.timesteps import STEPS
from cachemark.contract.method import Bidirectional
from cachemark.models.diffusion import DiffusionHead, process
from cachemark.models.mar import MAR

MASKED = (1.0, 0.25, 0.7)  # centre, width and least of the share that training masks: a normal distribution cut at [0.7, 1]
UNCONDITIONAL = 0.1  # share of training samples without their class
BIN = 1 / 255  # half the width of a bin of the discretised likelihood of the last step


def hidden(
    model: MAR, labels: Tensor, latents: Tensor, generator: torch.Generator, *, masked: int | None = None, dropped: float = UNCONDITIONAL
) -> tuple[Tensor, Tensor]:
    """Return the head's conditions (batch, n, dim) for masked tokens, and the tokens (batch, n, C) fp32.

    ``latents`` (batch, N, C). ``masked``: tokens hidden per sample; drawn for the batch if absent. A fraction ``dropped`` of the samples
    loses its class.
    """
    batch, count, device = *latents.shape[:2], latents.device

    def draw(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=generator.device).to(device)

    share = float(draw(1))  # drawn in any case, so that later draws do not depend on ``masked``
    masked = masked_count(count, share) if masked is None else masked
    order = draw(batch, count).argsort(1)
    places, known = order[:, :masked], order[:, masked:].sort(1).values
    cond = torch.where(draw(batch, 1) < dropped, model.fake_latent, model.class_emb(labels))
    return teacher(model, cond, latents, known, places), take(latents, places).float()


def teacher(model: MAR, cond: Tensor, latents: Tensor, known: Tensor, places: Tensor) -> Tensor:
    """Return the head's conditions (rows, n, dim) for the tokens at ``places`` (rows, n).

    The tokens at ``known`` (rows, m), ascending, are visible. ``cond`` (rows, dim): class vectors; ``latents`` (rows, N, C).
    """
    step, method = MaskedStep(0, 1, known=known), Bidirectional()
    return model.conditions(model.decode(model.encode(model.prefix(cond), latents, step, method), step, method), places)


def noising(start: Tensor, generator: torch.Generator, *, lean: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return noise for tokens (rows, n, C) and the step (rows, n) that each is noised to.

    The step is a uniform fraction to the power of ``lean``; below 1, strong noise is more frequent.
    """
    noise = torch.randn(start.shape, generator=generator, device=generator.device).to(start.device)
    share = torch.rand(start.shape[:2], generator=generator, device=generator.device).to(start.device)
    return noise, (share**lean * STEPS).long().clamp_max(STEPS - 1)  # a root of nearly 1 may round to 1


def masked_count(tokens: int, uniform: float) -> int:
    """Return ⌈tokens·r⌉, with r of the truncated normal distribution at ``uniform``."""
    centre, width, least = MASKED
    cut = torch.special.ndtr(torch.tensor([(least - centre) / width, (1 - centre) / width], dtype=torch.float64))
    share = centre + width * float(torch.special.ndtri(torch.lerp(cut[0], cut[1], uniform)))
    return min(tokens, math.ceil(tokens * share))


def terms(head: DiffusionHead, z: Tensor, start: Tensor, noise: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return both parts of the training loss per token, each (rows, n).

    They are the squared error of ε and the variational bound in bits per channel, which trains only the variance. ``z`` (rows, n, cond);
    clean tokens and ``noise`` (rows, n, C); ``index`` (rows, n) of the full process.
    """
    all_steps = process(tuple(range(STEPS)))
    x = all_steps.at("signal", index) * start + all_steps.at("noise", index) * noise
    eps, v = head.net(x, index, z).float().chunk(2, -1)
    guess = all_steps.predicted(x, eps.detach(), v, index)
    apart = _divergence(all_steps.mean(start, x, index), all_steps.at("least", index), guess.mean, guess.log_variance)
    bound = torch.where(index == 0, -_likelihood(start, guess.mean, guess.log_variance / 2).mean(-1), apart.mean(-1))
    return (noise - eps).square().mean(-1), bound / math.log(2)


def _divergence(mean: Tensor, log_variance: Tensor, other: Tensor, other_log_variance: Tensor) -> Tensor:
    """Return the Kullback–Leibler divergence between two normal distributions, in nats."""
    ratio = log_variance - other_log_variance
    return 0.5 * (ratio.exp() - 1 - ratio + (mean - other).square() * torch.exp(-other_log_variance))


def _likelihood(x: Tensor, mean: Tensor, log_deviation: Tensor) -> Tensor:
    """Return the log probability, in nats, of the bin of width 2/255 around x; bins at ±1 are unbounded."""
    upper, lower = (_share_below((x - mean + edge) * torch.exp(-log_deviation)) for edge in (BIN, -BIN))
    mass = torch.where(x < -0.999, upper, torch.where(x > 0.999, 1 - lower, upper - lower))
    return mass.clamp_min(1e-12).log()


def _share_below(x: Tensor) -> Tensor:
    """Return the tanh approximation of the normal distribution function that defines the loss."""
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
