"""MAR's diffusion head: an MLP that denoises a continuous token from a condition vector.

Li et al., "Autoregressive Image Generation without Vector Quantization" (NeurIPS 2024), §3.1–3.3. The process is Nichol and Dhariwal's
(2021): cosine schedule of 1000 steps, ε-prediction, learned range of the variance, respaced. What differs from the authors' code:
constants of a generation (timestep embeddings, float64 coefficients) are computed once, the condition is projected once per pass of the
transformer, and only conditional rows carry a sample. :class:`EagerHead` computes as they do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import ClassVar, NamedTuple, cast

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache.kernels import fused, fused_norms, fused_products
from ..cache.kernels.fused_norms import Shade
from ..cache.layout import Site, Step, Tokens
from ..cache.masked_layout import MaskedStep
from ..cache.timesteps import STEPS
from ..contract.method import Bidirectional, Method, run_blocks
from .layers import Following, Joined, add_shaded, modulation, shaded

Guidance = float | Tensor | None
EPS = 1e-6  # of all layer norms
FREQUENCIES = 256  # channels of the sinusoid that a timestep becomes


# -- the process ------------------------------------------------------------------------------------------------------
def _signal() -> numpy.ndarray:

    def curve(part: float) -> float:
        return math.cos((part + 0.008) / 1.008 * math.pi / 2) ** 2

    betas = [min(1 - curve((i + 1) / STEPS) / curve(i / STEPS), 0.999) for i in range(STEPS)]
    return numpy.cumprod(1 - numpy.array(betas))


class Back(NamedTuple):
    """One reverse step as numbers: x ← ``keep``·x − ``drop``·ε + exp(``base`` + ``slope``·v)·noise."""

    keep: float
    drop: float
    base: float
    slope: float


class Predicted(NamedTuple):
    """The network's prediction: mean and log variance of the previous step, and the clean token."""

    mean: Tensor
    log_variance: Tensor
    start: Tensor


class Process:
    """A respaced diffusion process, in float64 on the host; index i is ``timesteps[i]`` (ascending) of the full one."""

    def __init__(self, timesteps: tuple[int, ...]) -> None:
        self.timesteps = timesteps
        signal = _signal()[list(self.timesteps)]
        before = numpy.append(1.0, signal[:-1])
        beta = 1 - signal / before
        variance = beta * (1 - before) / (1 - signal)
        self.tables = {
            "signal": numpy.sqrt(signal), "noise": numpy.sqrt(1 - signal),
            "start_of_x": numpy.sqrt(1 / signal), "start_of_eps": numpy.sqrt(1 / signal - 1),
            "mean_of_start": beta * numpy.sqrt(before) / (1 - signal), "mean_of_x": (1 - before) * numpy.sqrt(1 - beta) / (1 - signal),
            "widest": numpy.log(beta), "least": numpy.log(numpy.append(variance[1], variance[1:])),  # the logarithm for step 0 would be −∞
        }
        self.backs = [self._back(i) for i in range(len(self.timesteps))]

    def __len__(self) -> int:
        return len(self.timesteps)

    def _back(self, i: int) -> Back:
        at = {name: float(table[i]) for name, table in self.tables.items()}
        return Back(
            at["mean_of_start"] * at["start_of_x"] + at["mean_of_x"], at["mean_of_start"] * at["start_of_eps"],
            (at["widest"] + at["least"]) / 4, (at["widest"] - at["least"]) / 4,
        )

    def at(self, name: str, index: Tensor) -> Tensor:
        """Return entries of a table in fp32 with a last dimension of 1, copied from the host."""
        return torch.from_numpy(self.tables[name]).to(index.device)[index].float()[..., None]

    def mean(self, start: Tensor, x: Tensor, index: Tensor) -> Tensor:
        """Return the mean of the step before x, given the clean token ``start``."""
        return self.at("mean_of_start", index) * start + self.at("mean_of_x", index) * x

    def predicted(self, x: Tensor, eps: Tensor, v: Tensor, index: Tensor) -> Predicted:
        """Interpret ``eps`` and variance logits ``v``, both (…, C), at steps ``index`` (…), without clipping."""
        start = self.at("start_of_x", index) * x - self.at("start_of_eps", index) * eps
        share = (v + 1) / 2
        log_variance = share * self.at("widest", index) + (1 - share) * self.at("least", index)
        return Predicted(self.mean(start, x, index), log_variance, start)


@cache
def process(timesteps: tuple[int, ...]) -> Process:
    """Return the process of these timesteps, ascending, cached."""
    return Process(timesteps)


# -- the network ------------------------------------------------------------------------------------------------------
@dataclass
class HeadTokens(Tokens):
    """Tokens of the head: ``cond`` is SiLU(time + condition), ``shade`` a block's shift, scale and gate.

    ``shades``: those of all blocks, then shift and scale of the final layer, where one product has computed them.
    """

    shade: Tensor | None = None
    shades: Tensor | None = None

    def rows(self, rows: slice | Sequence[int]) -> HeadTokens:
        shade, shades = (None if part is None else part[rows] for part in (self.shade, self.shades))
        return replace(cast(HeadTokens, super().rows(rows)), shade=shade, shades=shades)

    def of(self, layer: int, count: int) -> Tensor:
        """Return the first ``count`` vectors of a block's part of ``shades``."""
        assert self.shades is not None, "the head computes them first"
        width = self.x.size(-1)
        return self.shades.narrow(-1, 3 * layer * width, count * width)


def _mlp(inside: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inside, width), nn.SiLU(), nn.Linear(width, width))


class HeadBlock(nn.Module):
    """x += gate · mlp(norm(x)·(1 + scale) + shift); ``mix`` computes the modulation, without attention."""

    def __init__(self, width: int, layer: int = 0) -> None:
        super().__init__()
        self.layer = layer
        self.after: tuple[nn.LayerNorm | None] = (None,)  # the next block's norm; in a tuple, so that it is not a submodule
        self.in_ln = nn.LayerNorm(width, eps=EPS)
        self.mlp = _mlp(width, width)
        self.adaLN_modulation = modulation(width, 3)  # its SiLU is the same for all blocks and is applied before them

    def mix(self, site: Site, step: Step, tokens: Tokens, method: Method) -> HeadTokens:
        head = cast(HeadTokens, tokens)
        if head.shades is not None:
            return replace(head, shade=head.of(self.layer, 3))
        return HeadTokens(tokens.x, cond=tokens.cond, shade=self.adaLN_modulation[1](tokens.cond))

    def branch(self, tokens: Tokens) -> Tensor:
        if cast(HeadTokens, tokens).shades is not None:
            x, (first, _, second) = shaded(tokens, _following(tokens, self.layer, self.in_ln)), cast("list[nn.Linear]", [*self.mlp])
            return second(fused_products.product(x, first.weight, first.bias, "silu")) if fused_products.joins(x) else self.mlp(x)
        shift, scale, _ = _parts(tokens)
        return self.mlp(torch.addcmul(shift, self.in_ln(tokens.x), 1 + scale))

    def join(self, tokens: Tokens, branch: Tensor) -> Tokens:
        gate = _parts(tokens)[2]
        if cast(HeadTokens, tokens).shades is not None:
            return add_shaded(tokens, branch, _following(tokens, self.layer + 1, self.after[0]), gate)
        return tokens.with_x(torch.addcmul(tokens.x, gate, branch))


def _following(tokens: Tokens, layer: int, norm: nn.LayerNorm | None) -> Following:
    """Return the norm of a block, or the final layer's, which has no weights and is named by None."""
    shift, scale = cast(HeadTokens, tokens).of(layer, 2).chunk(2, -1)
    weight, bias = (None, None) if norm is None else (norm.weight, norm.bias)
    return norm, Shade(scale, shift, EPS, plus=True, weight=weight, bias=bias)


def _parts(tokens: Tokens) -> tuple[Tensor, ...]:
    shade = cast(HeadTokens, tokens).shade
    assert shade is not None, "mix comes first"
    return shade.chunk(3, -1)


class TimeEmbed(nn.Module):
    """Embedding of a timestep of the full process: cosines and sines, then two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = _mlp(FREQUENCIES, width)

    def waves(self, t: Tensor) -> Tensor:
        """Map (…) to (…, 256) fp32, cosines first."""
        half = FREQUENCIES // 2
        speeds = torch.exp(torch.arange(half, device=t.device) * (-math.log(10000) / half))
        angles = t[..., None].float() * speeds
        return torch.cat((angles.cos(), angles.sin()), -1)

    def forward(self, t: Tensor) -> Tensor:
        """Map (…) to (…, width)."""
        return self.mlp(self.waves(t).to(cast(nn.Linear, self.mlp[0]).weight.dtype))


class FinalLayer(nn.Module):
    """linear(norm(x)·(1 + scale) + shift); the norm has no parameters."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, channels)
        self.adaLN_modulation = modulation(width, 2)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation[1](cond).chunk(2, -1)
        return self.linear(torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=EPS), 1 + scale))


class Denoiser(nn.Module):
    """The MLP: tokens (rows, n, C) and conditions (rows, n, cond) to ε and variance logits (rows, n, 2·C)."""

    def __init__(self, channels: int, cond: int, depth: int, width: int) -> None:
        super().__init__()
        self.time_embed = TimeEmbed(width)
        self.cond_embed = nn.Linear(cond, width)
        self.input_proj = nn.Linear(channels, width)
        blocks = [HeadBlock(width, layer) for layer in range(depth)]
        for block, after in pairwise(blocks):
            block.after = (after.in_ln,)
        self.res_blocks = nn.ModuleList(blocks)
        self.final_layer = FinalLayer(width, 2 * channels)
        modulations = *(block.adaLN_modulation for block in blocks), self.final_layer.adaLN_modulation
        self.shades = Joined(*[cast(nn.Linear, each[1]) for each in modulations])
        self.sites = [Site("head", layer) for layer in range(depth)]

    def run(self, step: Step, method: Method, tokens: Tokens) -> Tensor:
        """Run blocks and final layer. The stack ends with the prediction, which methods may cache."""
        assert tokens.cond is not None
        if fused.fuses(tokens.x):
            tokens = replace(cast(HeadTokens, tokens), shades=self.shades(tokens.cond))
            tokens = run_blocks(self.sites, self.res_blocks, step, method, tokens)
            return self.final_layer.linear(shaded(tokens, _following(tokens, len(self.sites), None)))
        tokens = run_blocks(self.sites, self.res_blocks, step, method, tokens)
        assert tokens.cond is not None
        return self.final_layer(tokens.x, tokens.cond)

    def forward(self, x: Tensor, t: Tensor, z: Tensor) -> Tensor:
        """Run one plain pass at timesteps ``t`` (rows, n) of the full process."""
        cond = F.silu(self.time_embed(t) + self.cond_embed(z))
        return self.run(MaskedStep(0, 1), Bidirectional(), HeadTokens(self.input_proj(x.to(z.dtype)), cond=cond))


# -- the head ---------------------------------------------------------------------------------------------------------
def guided(out: Tensor, scale: float | Tensor | None) -> tuple[Tensor, Tensor]:
    """Return guided ε and variance logits of the conditional rows from the output (rows, n, 2·C).

    With guidance the second half of the rows is unconditional: ε = u + scale·(c − u); variance logits are the conditional ones.
    """
    if scale is None:
        eps, v = out.chunk(2, -1)
        return eps, v
    c, u = out.chunk(2)
    (eps, v), free = c.chunk(2, -1), u.chunk(2, -1)[0]
    return torch.lerp(free, eps, scale), v


def normal(uniform: Tensor) -> Tensor:
    """Convert uniform numbers in (0, 1) to standard normal ones by the inverse distribution function."""
    return torch.erfinv(2 * uniform - 1) * math.sqrt(2)


@dataclass(frozen=True)
class DenoisingSchedule:
    """Constants of the head's passes. ``times`` (passes, width): embedded timesteps, noisiest first."""

    process: Process
    times: Tensor
    temperature: float


class DiffusionHead(nn.Module):
    """The head, which samples tokens. Parameter names as published."""

    fusible: ClassVar[bool] = True

    def __init__(self, channels: int, cond: int, depth: int, width: int) -> None:
        super().__init__()
        self.net = Denoiser(channels, cond, depth, width)

    def schedule(self, timesteps: tuple[int, ...], temperature: float) -> DenoisingSchedule:
        """Compute the constants of a process. ``temperature`` scales the noise of steps, not the first."""
        chosen = process(timesteps)
        t = torch.tensor(chosen.timesteps[::-1], device=self.net.cond_embed.weight.device)
        return DenoisingSchedule(chosen, self.net.time_embed(t), temperature)

    def conditions(self, z: Tensor, schedule: DenoisingSchedule) -> Iterator[Tensor]:
        """Yield SiLU(time + condition) of every pass, each (rows, n, width)."""
        embedded = self.net.cond_embed(z)
        for time in schedule.times:
            yield F.silu(time + embedded)

    def back(self, x: Tensor, eps: Tensor, v: Tensor, noise: Tensor, index: int, process: Process) -> Tensor:
        """Take one reverse step from step ``index``; ``noise`` is already scaled by the temperature."""
        c = process.backs[index]
        mean = torch.sub(c.keep * x, eps, alpha=c.drop)
        return mean if index == 0 else torch.addcmul(mean, torch.exp(c.slope * v + c.base), noise)

    def sample(self, z: Tensor, noise: Tensor, guidance: Guidance, schedule: DenoisingSchedule, step: MaskedStep, method: Method) -> Tensor:
        """Sample tokens (batch, n, C) fp32 from conditions ``z`` (rows, n, cond), unconditional rows last.

        ``noise`` (1 + passes, batch, n, C) fp32: the initial noise, then the noise of every pass; the last is unused.
        """
        if self.fusible and fused.fuses(z):
            return self._sampled(z, noise.contiguous(), guidance, schedule, step, method)
        passes, copies, x, noise = len(schedule.process), z.size(0) // noise.size(1), noise[0], noise[1:] * schedule.temperature
        for inner, cond in enumerate(self.conditions(z, schedule)):
            at = replace(step, inner=inner, inners=passes)
            tokens = HeadTokens(self.net.input_proj(x.to(z.dtype)).repeat(copies, 1, 1), cond=cond)
            out = method.stack("head", at, tokens, partial(self.net.run, at, method)).float()
            x = self.back(x, *guided(out, guidance), noise[inner], passes - 1 - inner, schedule.process)
        return x


    def _sampled(
        self, z: Tensor, noise: Tensor, guidance: Guidance, schedule: DenoisingSchedule, step: MaskedStep, method: Method,
    ) -> Tensor:
        """Sample as above by fused passes."""
        passes, embedded, x = len(schedule.process), self.net.cond_embed(z), noise[0]
        scale = torch.full((), guidance, device=z.device) if isinstance(guidance, float | int) else guidance
        fed, noise = x.to(z.dtype).repeat(z.size(0) // x.size(0), 1, 1), noise[1:] * schedule.temperature
        for inner, time in enumerate(schedule.times):
            at, index = replace(step, inner=inner, inners=passes), passes - 1 - inner
            tokens = HeadTokens(self.net.input_proj(fed), cond=fused_norms.add_silu(embedded, time))
            out = method.stack("head", at, tokens, partial(self.net.run, at, method))
            x, fed = fused_norms.denoise(out, x, noise[inner] if index else None, scale, schedule.process.backs[index])
        return x


class EagerHead(DiffusionHead):
    """The head as published: embeds timesteps and conditions for every row in every pass. For reference."""

    fusible = False

    def conditions(self, z: Tensor, schedule: DenoisingSchedule) -> Iterator[Tensor]:
        for t in schedule.process.timesteps[::-1]:
            stamps = torch.tensor([t] * z.size(0) * z.size(1), device=z.device).view(z.shape[:2])
            yield F.silu(self.net.time_embed(stamps) + self.net.cond_embed(z))

    def back(self, x: Tensor, eps: Tensor, v: Tensor, noise: Tensor, index: int, process: Process) -> Tensor:
        at = torch.tensor([index] * x.size(0) * x.size(1), device=x.device).view(x.shape[:2])
        guess = process.predicted(x, eps, v, at)
        return guess.mean + (at != 0).float()[..., None] * torch.exp(0.5 * guess.log_variance) * noise
