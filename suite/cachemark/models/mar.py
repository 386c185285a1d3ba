"""MAR, class-conditional: a masked transformer that predicts several continuous tokens per step.

Li et al., "Autoregressive Image Generation without Vector Quantization" (NeurIPS 2024); published checkpoints load under their own names.
The encoder reads the known tokens, the decoder all positions, and a diffusion head samples each token from the decoder's output. What
differs from the authors' code: only known tokens are projected and only predicted positions normalized (theirs: all), order and noise are
keyed by sample and position (theirs: global generators), the residual stream has the model's dtype (theirs: fp32 under autocast), and
training has no dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache import random_streams as streams
from ..cache.arena import Memory
from ..cache.engines import Engine
from ..cache.kernels import fused
from ..cache.layout import Site, Step, Tokens, guided_rows
from ..cache.masked_layout import MaskedLayout, MaskedStep, masked_steps, placed, put, take
from ..cache.timesteps import spaced
from ..contract.method import Method, graph_key, run_blocks
from ..contract.planning import Denoising
from ..core.errors import Unsupported
from ..core.spec import Sampling
from .diffusion import EPS, DenoisingSchedule, DiffusionHead, EagerHead, normal
from .layers import MLP, add_shaded, affine, shaded

SCHEDULES = ("constant", "linear")


@dataclass(frozen=True)
class MARConfig:
    """Sizes. ``depth``: blocks of encoder and decoder, which share width and heads.

    ``buffer``: positions before the image that carry the class. ``channels``: of a token. ``steps``: default number of steps.
    ``diffusion``: passes of the head per token, see :func:`~cachemark.cache.timesteps.respaced`.
    """

    dim: int
    depth: tuple[int, int]
    heads: int
    head_depth: int
    head_width: int
    grid: int = 16
    channels: int = 16
    classes: int = 1000
    buffer: int = 64
    steps: int = 64
    diffusion: tuple[int, ...] = (100,)

    @property
    def tokens(self) -> int:
        return self.grid**2

    def layout(self, seeds: Sequence[int], sampling: Sampling, dtype: torch.dtype = torch.float32, device: str = "cpu") -> MaskedLayout:
        """Return the layout of a generation; unconditional rows come last, ``layers`` are the decoder's.

        The buffer is the condition of every row.
        """
        row_seeds, branches = guided_rows(seeds, sampling.cfg_scale != 1)
        return MaskedLayout(
            MAR.paradigm, (self.buffer,) * len(branches), self.grid, self.grid, self.heads, self.heads, self.dim // self.heads,
            self.depth[1], row_seeds, branches, dtype, device, steps=sampling.steps or self.steps, encoder=self.depth[0],
            head=self.head_depth, head_width=self.head_width, channels=self.channels, sections=self.spacing(sampling),
        )

    def spacing(self, sampling: Sampling) -> tuple[int, ...]:
        """Return the sections of the head's process for the number of passes in ``sampling``."""
        return spaced(self.diffusion, sampling.diffusion_steps) if sampling.diffusion_steps else self.diffusion


SIZES = {
    "B": MARConfig(768, (12, 12), 12, 6, 1024),
    "L": MARConfig(1024, (16, 16), 16, 8, 1280),
    "H": MARConfig(1280, (20, 20), 16, 12, 1536),
}
PAPER_CFG = {"B": 2.9, "L": 3.0, "H": 3.2}  # of the authors' evaluation, with a linear schedule


def guidance(sampling: Sampling, step: MaskedStep, tokens: int) -> float | None:
    """Return the guidance scale of a step, None without guidance.

    ``linear`` grows with the fraction of tokens known after the step, so the full scale is never reached.
    """
    if sampling.cfg_schedule not in SCHEDULES:
        raise Unsupported(f"Guidance schedule {sampling.cfg_schedule!r} is not one of this family.",
                          remedy=f"Known: {', '.join(SCHEDULES)}.")
    if sampling.cfg_scale == 1:
        return None
    share = 1.0 if sampling.cfg_schedule == "constant" else (tokens - step.left) / tokens
    return 1 + (sampling.cfg_scale - 1) * share


class MARAttention(nn.Module):
    """Projections of one block; the method computes the attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, site: Site, step: Step, method: Method) -> Tensor:
        """Map (rows, tokens, dim) to (rows, tokens, dim)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)  # each (rows, heads, tokens, head_dim)
        return self.proj(method.attend(site, step, q, k, v).transpose(1, 2).flatten(2))


class MARBlock(nn.Module):
    """Pre-norm: x += attention(norm(x)); x += mlp(norm(x))."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim, eps=EPS), MARAttention(dim, heads)
        self.norm2, self.mlp = nn.LayerNorm(dim, eps=EPS), MLP(dim, 4 * dim, dim)
        self.after: tuple[nn.LayerNorm | None] = (None,)  # the next block's first norm; in a tuple, so that it is not a submodule

    def mix(self, site: Site, step: Step, tokens: Tokens, method: Method) -> Tokens:
        if fused.fuses(tokens.x):
            return add_shaded(tokens, self.attn(shaded(tokens, affine(self.norm1)), site, step, method), affine(self.norm2))
        return tokens.with_x(tokens.x + self.attn(self.norm1(tokens.x), site, step, method))

    def branch(self, tokens: Tokens) -> Tensor:
        return self.mlp(shaded(tokens, affine(self.norm2)) if fused.fuses(tokens.x) else self.norm2(tokens.x))

    def join(self, tokens: Tokens, branch: Tensor) -> Tokens:
        (after,) = self.after
        if after is not None and fused.fuses(tokens.x):
            return add_shaded(tokens, branch, affine(after))
        return tokens.with_x(tokens.x + branch)


class MAR(nn.Module):
    """The transformer and its head, with published parameter names.

    ``eager_head``: run the head as the authors' code does, for comparison.
    """

    paradigm = "masked"

    def __init__(self, config: MARConfig, *, eager_head: bool = False) -> None:
        super().__init__()
        self.config = c = config
        places = c.buffer + c.tokens
        self.fake_latent = nn.Parameter(torch.zeros(1, c.dim))
        self.encoder_pos_embed_learned = nn.Parameter(torch.zeros(1, places, c.dim))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, c.dim))
        self.decoder_pos_embed_learned = nn.Parameter(torch.zeros(1, places, c.dim))
        self.diffusion_pos_embed_learned = nn.Parameter(torch.zeros(1, c.tokens, c.dim))
        self.class_emb = nn.Embedding(c.classes, c.dim)
        self.z_proj, self.z_proj_ln = nn.Linear(c.channels, c.dim), nn.LayerNorm(c.dim, eps=EPS)
        self.encoder_blocks = nn.ModuleList(MARBlock(c.dim, c.heads) for _ in range(c.depth[0]))
        self.encoder_norm = nn.LayerNorm(c.dim, eps=EPS)
        self.decoder_embed = nn.Linear(c.dim, c.dim)
        self.decoder_blocks = nn.ModuleList(MARBlock(c.dim, c.heads) for _ in range(c.depth[1]))
        self.decoder_norm = nn.LayerNorm(c.dim, eps=EPS)
        self.diffloss = (EagerHead if eager_head else DiffusionHead)(c.channels, c.dim, c.head_depth, c.head_width)
        for blocks in (self.encoder_blocks, self.decoder_blocks):
            for block, after in pairwise(cast("list[MARBlock]", [*blocks])):
                block.after = (after.norm1,)
        encoder = [Site("encoder", layer) for layer in range(c.depth[0])]
        decoder = [Site("decoder", layer) for layer in range(c.depth[1])]
        self.stacks = {"encoder": (encoder, self.encoder_blocks), "decoder": (decoder, self.decoder_blocks)}
        self.sites = encoder + decoder + self.diffloss.net.sites

    def initialise(self, seed: int) -> MAR:
        """Draw random weights, std 0.02, including gates and the last layer that the authors start at zero.

        Zero biases.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.02, generator=generator)
            elif name.endswith("bias"):
                parameter.data.zero_()
        return self

    def layout(self, seeds: Sequence[int], sampling: Sampling, labels: Sequence[int] = ()) -> MaskedLayout:
        return self.config.layout(seeds, sampling, self.mask_token.dtype, str(self.mask_token.device))

    # -- random numbers of the sample ---------------------------------------------------------------------------------
    def order(self, key: Tensor) -> Tensor:
        """Return a random order of positions per seed of ``key`` (batch,): (batch, N) int64, last first."""
        return streams.integers(streams.keys(key, "order", 0), self.config.tokens).argsort(dim=1, stable=True)

    def noise(self, key: Tensor, places: Tensor, passes: int) -> Tensor:
        """Return noise for tokens at ``places`` (batch, n): (1 + passes, batch, n, C) fp32.

        It depends only on seed, position and pass, so it is equal in any batch and under any schedule.
        """
        count, width = 1 + passes, self.config.channels
        return normal(fused.random_numbers(key[:, None], "noise", places, count * width)).unflatten(-1, (count, width)).movedim(-2, 0)

    # -- the passes ---------------------------------------------------------------------------------------------------
    def prefix(self, cond: Tensor) -> Tensor:
        """Return the buffer as the encoder reads it, (rows, buffer, dim), from class vectors (rows, dim)."""
        return self.z_proj_ln(cond[:, None] + self.encoder_pos_embed_learned[:, : self.config.buffer])

    def encode(self, prefix: Tensor, latents: Tensor, step: MaskedStep, method: Method) -> Tensor:
        """Encode the buffer and known tokens: (rows, buffer + known, dim), from ``latents`` (batch, N, C)."""
        batch, pos = len(latents), self.encoder_pos_embed_learned[0, self.config.buffer :]
        generated = self.z_proj(take(latents, step.known[:batch]).to(pos.dtype)) + F.embedding(step.known[:batch], pos)
        x = torch.cat((prefix, self.z_proj_ln(generated).repeat(len(prefix) // batch, 1, 1)), 1)
        return self.encoder_norm(self._through("encoder", x, step, method))

    def decode(self, encoded: Tensor, step: MaskedStep, method: Method) -> Tensor:
        """Return hidden states of all positions, (rows, buffer + N, dim), before the final norm."""
        buffer, pos = self.config.buffer, self.decoder_pos_embed_learned
        x = self.decoder_embed(encoded)
        generated = x[:, buffer:] + F.embedding(step.known, pos[0, buffer:])
        image = put((self.mask_token + pos[:, buffer:]).repeat(len(x), 1, 1), step.known, generated)
        return self._through("decoder", torch.cat((x[:, :buffer] + pos[:, :buffer], image), 1), step, method)

    def conditions(self, hidden: Tensor, places: Tensor) -> Tensor:
        """Return the head's conditions (rows, n, dim) at ``places`` (rows, n) from the decoder's output."""
        selected = take(hidden[:, self.config.buffer :], places)
        return self.decoder_norm(selected) + F.embedding(places, self.diffusion_pos_embed_learned[0])

    def _through(self, name: str, x: Tensor, step: Step, method: Method) -> Tensor:
        sites, blocks = self.stacks[name]
        return method.stack(name, step, Tokens(x), lambda fed: run_blocks(sites, blocks, step, method, fed).x)

    # -- generation ---------------------------------------------------------------------------------------------------
    @torch.inference_mode()
    def generate(
        self, labels: Tensor, seeds: Sequence[int], method: Method, sampling: Sampling, memory: Memory, *,
        forced: Tensor | None = None, see: Callable[[Tensor, Tensor], None] | None = None, mark: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Generate continuous tokens (batch, N, C) fp32, raster ordered, for ``labels`` (batch,).

        ``forced`` (batch, N, C) replaces sampled tokens; ``see(places, tokens)`` receives the tokens of a step, (batch, count, C), and
        their positions, (batch, count) ascending; ``mark(index)`` is called once ``index`` + 1 tokens exist, for timing.
        """
        layout, engine, batch = self.layout(seeds, sampling), memory.engine, len(labels)
        method.begin(layout, self.sites, memory)
        key = engine.hold("seeds", streams.seeds_tensor(seeds, labels.device))
        paced, order = method.paced(layout), method.ordered(self.order(key))
        steps = placed(masked_steps(paced, paced.steps), order.repeat(layout.rows // batch, 1))
        cond = torch.cat((self.class_emb(labels), self.fake_latent.expand(batch, -1))[: layout.rows // batch])
        prefix = engine.hold("prefix", self.prefix(cond))
        parts = [method.denoising(step, layout.diffusion) for step in steps]
        processes = {share.process(layout) for shares in parts for share in shares}
        schedules = {steps: self._schedule(steps, sampling, engine) for steps in sorted(processes)}
        latents = torch.zeros(batch, layout.visual, self.config.channels, device=labels.device)
        for step, shares in zip(steps, parts, strict=True):
            places, scale = step.generating[:batch], guidance(sampling, step, layout.visual)
            fed = latents, step.known, step.generating, step.previous
            (z,) = engine.run(("transformer", step.index), partial(self._conditions, step, method, prefix), fed, method)
            arguments = (z, places) if scale is None else (z, places, scale)
            head = partial(self._drawn, step, method, shares, [schedules[share.process(layout)] for share in shares], key)
            (drawn,) = engine.run(("head", graph_key(method, step), tuple(shares)), head, arguments, method)
            method.end_step(step)
            latents = put(latents, places, drawn if forced is None else take(forced, places))
            if see is not None:
                see(places, drawn)
            if mark is not None:
                mark(step.first + step.count - 1)
        return latents

    def _conditions(
        self, step: MaskedStep, method: Method, prefix: Tensor, latents: Tensor, generated: Tensor, generating: Tensor, previous: Tensor
    ) -> tuple[Tensor]:
        """Run encoder and decoder; return the head's conditions (rows, n, dim) for the tokens of the step."""
        at = replace(step, known=generated, generating=generating, previous=previous)
        return (self.conditions(self.decode(self.encode(prefix, latents, at, method), at, method), generating),)

    def _schedule(self, timesteps: tuple[int, ...], sampling: Sampling, engine: Engine) -> DenoisingSchedule:
        schedule = self.diffloss.schedule(timesteps, sampling.temperature)
        return replace(schedule, times=engine.hold(f"times.{timesteps}", schedule.times))

    def _drawn(
        self, step: MaskedStep, method: Method, shares: Sequence[Denoising], schedules: Sequence[DenoisingSchedule], key: Tensor,
        z: Tensor, places: Tensor, scale: float | Tensor | None = None,
    ) -> tuple[Tensor]:
        """Run all passes of the head for ``places`` (batch, n): tokens (batch, n, C)."""
        def sampled(z: Tensor, places: Tensor, schedule: DenoisingSchedule) -> Tensor:
            return self.diffloss.sample(z, self.noise(key, places, len(schedule.process)), scale, schedule, step, method)

        if len(shares) == 1:
            return (sampled(z, places, schedules[0]),)
        drawn = torch.zeros(*places.shape, self.config.channels, device=z.device)
        batch = len(places)
        parts = method.ranked(step, z[:batch]).split([share.tokens for share in shares], 1)
        for part, schedule in zip(parts, schedules, strict=True):
            drawn = put(drawn, part, sampled(take(z, part.repeat(len(z) // batch, 1)), places.gather(1, part), schedule))
        return (drawn,)
