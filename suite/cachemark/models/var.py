"""VAR, class-conditional: a transformer that predicts a whole token map at a time, coarse to fine.

Tian et al., "Visual Autoregressive Modeling: Scalable Image Generation via Next-Scale Prediction" (NeurIPS 2024); published
checkpoints load under their own names. What differs from the authors' code: the modulations of all blocks are projected from
the class once per generation (theirs in every scale), K is kept in the model's dtype (theirs comes out of the normalisation
in fp32 under autocast and stays so), rows are doubled only with guidance, and tokens are drawn by Gumbel-max keyed by the
sample (theirs by ``multinomial``). ``more_smooth``, which the authors never use for metrics, is not offered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache import random_streams as streams
from ..cache.arena import Memory
from ..cache.layout import Layout, Site, Step, Tokens, scale_steps
from ..contract.method import Method, graph_key, run_blocks
from ..contract.uncached import Blockwise
from ..core.errors import BadCheckpoint
from ..core.spec import Sampling
from . import checkpoints
from .layers import MLP, Projection, modulation
from .sampling import draw, guide_scale
from .vision.msvq import MultiScaleQuantizer

SIDES_256 = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16)
SIDES_512 = (1, 2, 3, 4, 6, 9, 13, 18, 24, 32)
STEEPEST = math.log(100)  # to which the learned logarithm of the softmax scale is clamped
BUFFERS = ("*.zero_k_bias", "lvl_1L", "attn_bias_for_masking")  # of published files: recomputed here, or not needed


@dataclass(frozen=True)
class VARConfig:
    """Sizes. ``classes`` excludes the null class, whose id is ``classes``; ``width``: channels of the quantiser.

    ``l2_norm``: unit queries and keys with a learned scale per head, else a softmax scale of 0.25/√head_dim. ``shared_aln``:
    one projection of the class for all blocks, and a table of each block's own.
    """

    depth: int
    heads: int
    dim: int
    sides: tuple[int, ...] = SIDES_256
    vocab: int = 4096
    classes: int = 1000
    width: int = 32
    l2_norm: bool = True
    shared_aln: bool = False
    norm_eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def grid(self) -> int:
        """Side of the last map."""
        return self.sides[-1]

    @property
    def tokens(self) -> int:
        """Tokens of all maps."""
        return sum(side**2 for side in self.sides)


# Those of the paper have as many heads as blocks, of 64 channels.
SIZES = {f"d{depth}": VARConfig(depth, depth, 64 * depth) for depth in (16, 20, 24, 30)}
SIZES["d36-512"] = VARConfig(36, 36, 64 * 36, SIDES_512, shared_aln=True)


def layout(config: VARConfig, seeds: Sequence[int], sampling: Sampling, dtype: torch.dtype, device: str) -> Layout:
    """Shape of a generation. The class is the input of the first scale, so there are no condition entries; with guidance the
    unconditional rows follow the others."""
    copies = 2 if sampling.cfg_scale > 0 else 1
    rows = len(seeds) * copies
    branches = tuple(row // len(seeds) for row in range(rows))
    return Layout(VAR.paradigm, (0,) * rows, 0, 0, config.heads, config.heads, config.head_dim, config.depth, tuple(seeds) * copies,
                  branches, dtype, device, config.sides)


class VARAttention(nn.Module):
    """Projections of one block; what happens between them is the method's."""

    def __init__(self, config: VARConfig) -> None:
        super().__init__()
        self.heads, self.head_dim, self.l2_norm = config.heads, config.head_dim, config.l2_norm
        if config.l2_norm:
            self.scale_mul_1H11 = nn.Parameter(torch.full((1, config.heads, 1, 1), math.log(4)))
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(config.dim)), nn.Parameter(torch.zeros(config.dim))
        self.mat_qkv = Projection(config.dim, 3 * config.dim, bias=False)
        self.proj = nn.Linear(config.dim, config.dim)

    def forward(self, x: Tensor, site: Site, step: Step, method: Method) -> Tensor:
        """(rows, tokens, dim) → (rows, tokens, dim)."""
        bias = torch.cat((self.q_bias, torch.zeros_like(self.q_bias), self.v_bias))
        qkv = self.mat_qkv(x, bias).unflatten(-1, (3, self.heads, self.head_dim))
        q, k, v = qkv.transpose(1, 3).unbind(2)  # each (rows, heads, tokens, head_dim)
        q, k = self.scaled(q, k)
        return self.proj(method.attend(site, step, q, k, v).transpose(1, 2).flatten(2))

    def scaled(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys such that a softmax scale of 1/√head_dim, which attention applies, gives the model's own."""
        if not self.l2_norm:
            return q * 0.25, k
        steepness = self.scale_mul_1H11.float().clamp_max(STEEPEST).exp() * math.sqrt(self.head_dim)
        return (F.normalize(q.float(), dim=-1) * steepness).to(q.dtype), F.normalize(k.float(), dim=-1).to(k.dtype)


class VARBlock(nn.Module):
    """x += γ₁·attention(norm(x)·(1 + s₁) + b₁); x += γ₂·ffn(norm(x)·(1 + s₂) + b₂).

    The tokens' ``cond`` (rows, depth, 6, dim) holds γ₁, γ₂, 1 + s₁, 1 + s₂, b₁, b₂ of every block.
    """

    def __init__(self, config: VARConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.eps = layer, config.norm_eps
        self.attn, self.ffn = VARAttention(config), MLP(config.dim, approximate="tanh")
        if config.shared_aln:
            self.ada_gss = nn.Parameter(torch.zeros(1, 1, 6, config.dim))
        else:
            self.ada_lin = modulation(config.dim, 6)

    def modulation(self, cond: Tensor, shared: Tensor | None) -> Tensor:
        """(rows, 6, dim) from the class embedding (rows, dim), or from what the shared projection made of it."""
        own = self.ada_lin(cond).unflatten(-1, (6, -1)) if shared is None else shared + self.ada_gss[0]
        return own + own.new_tensor((0, 0, 1, 1, 0, 0))[:, None]

    def mix(self, site: Site, step: Step, tokens: Tokens, method: Method) -> Tokens:
        out = self.attn(self._modulated(tokens, 0), site, step, method)
        return tokens.with_x(torch.addcmul(tokens.x, self._part(tokens, 0), out))

    def branch(self, tokens: Tokens) -> Tensor:
        return self.ffn(self._modulated(tokens, 1))

    def join(self, tokens: Tokens, branch: Tensor) -> Tokens:
        return tokens.with_x(torch.addcmul(tokens.x, self._part(tokens, 1), branch))

    def _modulated(self, tokens: Tokens, which: int) -> Tensor:
        normed = F.layer_norm(tokens.x, tokens.x.shape[-1:], eps=self.eps)
        return torch.addcmul(self._part(tokens, 4 + which), normed, self._part(tokens, 2 + which))

    def _part(self, tokens: Tokens, which: int) -> Tensor:
        assert tokens.cond is not None
        return tokens.cond[:, self.layer, which, None]


class HeadNorm(nn.Module):
    """norm(x)·(1 + s) + b with s, b from the class embedding itself, even where the blocks share a projection. In fp32."""

    def __init__(self, config: VARConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.ada_lin = modulation(config.dim, 2)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        """``x`` (rows, tokens, dim), ``cond`` (rows, dim)."""
        scale, shift = self.ada_lin(cond).float()[:, None].chunk(2, -1)
        return torch.addcmul(shift, F.layer_norm(x.float(), x.shape[-1:], eps=self.eps), 1 + scale)


class VAR(nn.Module):
    """The transformer. Parameter names are those of the published checkpoints.

    ``quantizer`` turns tokens into the input of the next scale; it belongs to the image tokenizer's file and is no part of this
    module's state. ``recompute``: project the modulations anew in every scale, as the authors' code does; for comparison only.
    """

    paradigm = "next-scale"

    def __init__(self, config: VARConfig, quantizer: MultiScaleQuantizer, *, recompute: bool = False) -> None:
        super().__init__()
        assert (quantizer.sides, quantizer.width, quantizer.codes) == (config.sides, config.width, config.vocab), "of another model"
        self.config, self.recompute = config, recompute
        self._quantizer = (quantizer,)  # in a tuple, so that it is no submodule
        c = config
        self.word_embed = nn.Linear(c.width, c.dim)
        self.class_emb = nn.Embedding(c.classes + 1, c.dim)
        self.pos_start = nn.Parameter(torch.zeros(1, 1, c.dim))
        self.pos_1LC = nn.Parameter(torch.zeros(1, c.tokens, c.dim))
        self.lvl_embed = nn.Embedding(len(c.sides), c.dim)
        if c.shared_aln:
            self.shared_ada_lin = modulation(c.dim, 6)
        self.blocks = nn.ModuleList(VARBlock(c, layer) for layer in range(c.depth))
        self.head_nm = HeadNorm(c)
        self.head = nn.Linear(c.dim, c.vocab)
        self.sites = [Site("decoder", layer) for layer in range(c.depth)]

    @property
    def quantizer(self) -> MultiScaleQuantizer:
        return self._quantizer[0]

    def initialise(self, seed: int) -> VAR:
        """Random weights: normal, std 0.02; gates, scales and the head included, where the authors start at or near zero:
        benchmarks want real logits."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if not name.endswith("scale_mul_1H11"):
                parameter.data.normal_(0, 0.02, generator=generator)
        return self

    def layout(self, seeds: Sequence[int], sampling: Sampling, labels: Sequence[int] = ()) -> Layout:
        """Shape of a generation of these samples by this model."""
        weight = self.head.weight
        return layout(self.config, seeds, sampling, weight.dtype, str(weight.device))

    @property
    def places(self) -> Tensor:
        """The embedding of position and scale that every token gets, (1, N, dim)."""
        sizes = torch.tensor([side**2 for side in self.config.sides], device=self.pos_1LC.device)
        return self.pos_1LC + self.lvl_embed.weight.repeat_interleave(sizes, 0, output_size=self.config.tokens)

    def modulations(self, cond: Tensor) -> Tensor:
        """Modulation of every block's norms and gates, (rows, depth, 6, dim), from the class embedding (rows, dim)."""
        shared = self.shared_ada_lin(cond).unflatten(-1, (6, -1)) if self.config.shared_aln else None
        return torch.stack([cast(VARBlock, block).modulation(cond, shared) for block in self.blocks], 1)

    def forward(self, tokens: Tokens, step: Step, method: Method) -> Tensor:
        """One pass of the stack under a method: hidden states before the head's norm, (rows, tokens, dim)."""
        return method.stack("decoder", step, tokens, lambda fed: run_blocks(self.sites, self.blocks, step, method, fed).x)

    def logits(self, hidden: Tensor, cond: Tensor) -> Tensor:
        """Head norm in fp32, head in the model's dtype, then fp32. ``cond`` (rows, dim) is the class embedding."""
        return self.head(self.head_nm(hidden, cond).to(self.head.weight.dtype)).float()

    def teacher(self, labels: Tensor, tokens: Tensor) -> Tensor:
        """The training pass: logits (rows, N, vocab) for ``tokens`` (rows, N), each map predicted from the coarser ones."""
        cond = self.class_emb(labels)
        fed = self.word_embed(self.quantizer.teacher(tokens).to(self.word_embed.weight.dtype))
        x = torch.cat((cond[:, None] + self.pos_start, fed), 1) + self.places
        method = Blockwise([side**2 for side in self.config.sides], x.device)
        return self.logits(self(Tokens(x, cond=self.modulations(cond)), Step(0, 1), method), cond)

    @torch.inference_mode()
    def generate(
        self, labels: Tensor, seeds: Sequence[int], method: Method, sampling: Sampling, memory: Memory, *,
        forced: Tensor | None = None, see: Callable[[int, Tensor], None] | None = None, mark: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Generate tokens (batch, N) int64, scale by scale, for ``labels`` (batch,) under ``method``.

        ``forced`` (batch, N) replaces what is drawn; ``see(first, logits)`` receives the guided fp32 logits (batch, count,
        vocab) of a scale; ``mark(i)`` is called when all tokens up to i have been drawn, for a clock.
        """
        layout, engine = self.layout(seeds, sampling), memory.engine
        method.begin(layout, self.sites, memory)
        key = engine.hold("seeds", streams.seeds_tensor(seeds, labels.device)[:, None])
        out = torch.empty(len(labels), layout.visual, dtype=torch.int64, device=labels.device)
        classes = torch.cat((labels, torch.full_like(labels, self.config.classes))[: layout.rows // len(labels)])
        cond = engine.hold("class", self.class_emb(classes))
        given = Given(key, cond, engine.hold("places", self.places), engine.hold("modulations", self.modulations(cond)))
        f_hat = self.quantizer.empty(len(labels))
        for step in scale_steps(layout):
            span = slice(step.first, step.first + step.count)
            work = partial(self._pass, step, method, sampling, given, see is not None)
            inputs = (f_hat,) if forced is None else (f_hat, forced[:, span])
            codes, f_hat, *logits = engine.run((step.index, see is not None, graph_key(method, step)), work, inputs, method)
            method.end_step(step)
            out[:, span] = codes
            if see is not None:
                see(step.first, logits[0])
            if mark is not None:
                mark(span.stop - 1)
        return out

    def _pass(
        self, step: Step, method: Method, sampling: Sampling, given: Given, with_logits: bool, f_hat: Tensor, forced: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """From the feature map so far: the tokens of a scale (batch, count), the feature map with them and, ``with_logits``, the
        guided logits. Nobody reads the feature map of the last scale, so it stays as it was."""
        span, cond = slice(step.first, step.first + step.count), given.cond
        x, shades = cond[:, None] + self.pos_start + given.places[:, :1], given.modulations
        if step.index:
            fed = self.word_embed(self.quantizer.next_map(f_hat, step.index).to(x.dtype)) + given.places[:, span]
            x, shades = fed.repeat(len(cond) // len(f_hat), 1, 1), self.modulations(cond) if self.recompute else shades
        hidden = self(Tokens(x, cond=shades), step, method)
        logits = guide_scale(self.logits(hidden, cond), sampling, step.index, step.total)
        codes = draw(logits, sampling, given.key, torch.arange(span.start, span.stop, device=f_hat.device)) if forced is None else forced
        f_hat = f_hat if step.last else self.quantizer.add(f_hat, codes, step.index)
        return (codes, f_hat, logits) if with_logits else (codes, f_hat)


@dataclass(frozen=True)
class Given:
    """Constants of a generation's passes: the samples' seeds (batch, 1), the class embedding (rows, dim), and what
    :attr:`VAR.places` and :meth:`VAR.modulations` make once."""

    key: Tensor
    cond: Tensor
    places: Tensor
    modulations: Tensor


def check_sides(config: VARConfig, path: str | Path) -> None:
    """Refuse a published file whose own table of scales (``lvl_1L``, the scale of every token) says other sides; BadCheckpoint."""
    table = checkpoints.read(path).get("lvl_1L")
    if table is None:
        return
    found = tuple(math.isqrt(int(count)) for count in table.flatten().bincount())
    if found != config.sides:
        raise BadCheckpoint(f"{str(path)!r} was trained with patch_nums {' '.join(map(str, found))}; this model has "
                            f"{' '.join(map(str, config.sides))}.", remedy="Name the model of that resolution, such as var-d36-512.")
