"""VAR, class-conditional: a transformer that predicts one token map per pass, coarse to fine.

Tian et al., "Visual Autoregressive Modeling: Scalable Image Generation via Next-Scale Prediction" (NeurIPS 2024); published checkpoints
load under their own names. What differs from the authors' code: modulations are projected once per generation (theirs: in every scale), K
has the model's dtype (theirs stays fp32 under autocast), rows are doubled only with guidance, and tokens are sampled by Gumbel-max keyed
by the sample (theirs: ``multinomial``). ``more_smooth``, which the authors never use for metrics, is not offered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache.engines import Engine
from ..cache.kernels import fused, fused_norms
from ..cache.layout import Grid, Layout, ScaleWork, Site, Step, Tokens, squares
from ..contract.block import Branch
from ..contract.method import Blockwise, Method
from ..core.errors import BadCheckpoint
from ..core.spec import Sampling
from . import checkpoints
from .layers import MLP, Projection, modulation, rotate_pairs
from .sampling import draw, guide_scale
from .scales import Given, HeadNorm, ModulatedBlock, ScaleModel, ScaleSizes
from .vision.msvq import MultiScaleQuantizer

SIDES_256 = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16)
SIDES_512 = (1, 2, 3, 4, 6, 9, 13, 18, 24, 32)
STEEPEST = math.log(100)  # upper limit of the learned logarithm of the softmax scale
BUFFERS = ("*.zero_k_bias", "lvl_1L", "attn_bias_for_masking")  # of published files: recomputed here, or not needed


@dataclass(frozen=True)
class VARConfig(ScaleSizes):
    """Sizes. ``sides``: of the square token maps; ``classes`` excludes the null class (id ``classes``).

    ``width``: channels of the quantizer. ``l2_norm``: unit queries and keys with a learned scale per head, else a softmax scale of
    0.25/√head_dim. ``shared_aln``: one projection of the class for all blocks, plus a table per block.
    """

    unguided = 0
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
    def scales(self) -> tuple[Grid, ...]:
        return squares(self.sides)

    def work(self, text: int = 0) -> ScaleWork:
        return ScaleWork(12 * self.dim**2, self.dim * self.vocab, 2 * self.dim**2, self.width * self.dim,
                         9 * self.width**2 * self.sides[-1] ** 2)


# The paper's models have as many heads as blocks, with 64 channels each.
SIZES = {f"d{depth}": VARConfig(depth, depth, 64 * depth) for depth in (16, 20, 24, 30)}
SIZES["d36-512"] = VARConfig(36, 36, 64 * 36, SIDES_512, shared_aln=True)


class VARAttention(nn.Module):
    """Projections of one block; the method computes the attention. ``l2_norm``: see :class:`VARConfig`."""

    def __init__(self, dim: int, heads: int, *, l2_norm: bool = True) -> None:
        super().__init__()
        self.heads, self.head_dim, self.l2_norm = heads, dim // heads, l2_norm
        if l2_norm:
            self.scale_mul_1H11 = nn.Parameter(torch.full((1, heads, 1, 1), math.log(4)))
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))
        self.mat_qkv = Projection(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)
        self._bias: tuple[Tensor, ...] = ()  # not a buffer: q_bias and v_bias are its ends

    @torch.inference_mode(False)  # a parameter cannot take the data of an inference tensor
    def bias(self) -> Tensor:
        """Return the bias of queries, keys and values as one tensor, which the parameters share from the first call on."""
        if not self._bias or self._bias[1].data_ptr() != self.q_bias.data_ptr():
            with torch.no_grad():
                bias = torch.cat((self.q_bias, torch.zeros_like(self.q_bias), self.v_bias))
            self.q_bias.data, _, self.v_bias.data = bias.chunk(3)
            self._bias = bias, self.q_bias
        return self._bias[0]

    def forward(self, x: Tensor, site: Site, step: Step, tokens: Tokens, method: Method) -> Tensor:
        """Map (rows, tokens, dim) to (rows, tokens, dim). ``tokens`` has the rotations, if any."""
        if self.l2_norm and fused.fuses(x):
            qkv = self.mat_qkv(x, self.bias()).unflatten(-1, (3, self.heads, self.head_dim))
            if method.needs_raw_queries:
                method.observe_raw(site, step, qkv[:, :, 0].transpose(1, 2) - self.q_bias.unflatten(0, (self.heads, 1, -1)))
            parts = fused_norms.unit_append(qkv, self.scale_mul_1H11.flatten(), STEEPEST, tokens.rope, method.place(site, x.size(1)))
            return self.proj(method.attend(site, step, *parts).transpose(1, 2).flatten(2))
        bias = torch.cat((self.q_bias, torch.zeros_like(self.q_bias), self.v_bias))
        qkv = self.mat_qkv(x, bias).unflatten(-1, (3, self.heads, self.head_dim))
        q, k, v = qkv.transpose(1, 3).unbind(2)  # each (rows, heads, tokens, head_dim)
        if method.needs_raw_queries:
            method.observe_raw(site, step, q - self.q_bias.unflatten(0, (self.heads, 1, -1)))
        q, k = self.scaled(q, k)
        if tokens.rope is not None:
            q, k = (rotate_pairs(part.transpose(1, 2), tokens.rope).transpose(1, 2) for part in (q, k))
        return self.proj(method.attend(site, step, q, k, v).transpose(1, 2).flatten(2))

    def scaled(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Scale queries and keys so that the softmax scale 1/√head_dim gives the model's own."""
        if not self.l2_norm:
            return q * 0.25, k
        steepness = self.scale_mul_1H11.float().clamp_max(STEEPEST).exp() * math.sqrt(self.head_dim)
        return unit(q, steepness), unit(k)


def unit(x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """Return x / ‖x‖ · scale along the last dimension, computed in at least fp32 and rounded once."""
    if x.dtype in (torch.float32, torch.float64):
        return F.normalize(x, dim=-1) * scale
    if torch.is_grad_enabled():  # in training
        return (F.normalize(x.float(), dim=-1) * scale).to(x.dtype)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return torch.mul(x, scale / norm.clamp_min(1e-12), out=torch.empty_like(x))  # without a copy of x in fp32


class VARBlock(ModulatedBlock):
    """Attention and MLP, each modulated and gated."""

    def __init__(self, config: VARConfig, layer: int) -> None:
        super().__init__(layer, config.norm_eps)
        self.attn = VARAttention(config.dim, config.heads, l2_norm=config.l2_norm)
        self.ffn = MLP(config.dim, 4 * config.dim, config.dim, approximate="tanh")
        if config.shared_aln:
            self.ada_gss = nn.Parameter(torch.zeros(1, 1, 6, config.dim))
        else:
            self.ada_lin = modulation(config.dim, 6)

    def branches(self, site: Site, step: Step, method: Method) -> list[Branch]:
        def attention(tokens: Tokens) -> Tensor:
            return self.attn(self.modulated(tokens, 0), site, step, tokens, method)

        return [Branch(attention, partial(self.gated, which=0)), self.mlp]


@dataclass(frozen=True)
class Placed(Given):
    """Constants with the embedding of every token's position and scale, (1, N, dim)."""

    places: Tensor


class VAR(ScaleModel[Placed]):
    """The transformer, with published parameter names.

    ``quantizer`` belongs to the image tokenizer's file, not to this module's state. ``recompute``: project modulations in every
    scale, as the authors do, for comparison.
    """

    config: VARConfig

    def __init__(self, config: VARConfig, quantizer: MultiScaleQuantizer, *, recompute: bool = False) -> None:
        super().__init__()
        assert (quantizer.sides, quantizer.width, quantizer.codes) == (config.sides, config.width, config.vocab), "of another model"
        self.config, self.recompute = config, recompute
        self._quantizer = (quantizer,)  # in a tuple, so that it is not a submodule
        c = config
        self.word_embed = nn.Linear(c.width, c.dim)
        self.class_emb = nn.Embedding(c.classes + 1, c.dim)
        self.pos_start = nn.Parameter(torch.zeros(1, 1, c.dim))
        self.pos_1LC = nn.Parameter(torch.zeros(1, c.tokens, c.dim))
        self.lvl_embed = nn.Embedding(len(c.sides), c.dim)
        self.shared_ada_lin = modulation(c.dim, 6) if c.shared_aln else None
        self.stacked = [VARBlock(c, layer) for layer in range(c.depth)]
        for block, after in pairwise(self.stacked):
            block.after = (after,)
        self.blocks = nn.ModuleList(self.stacked)
        self.head_nm = HeadNorm(c.dim, c.norm_eps)
        self.head = nn.Linear(c.dim, c.vocab)
        self.sites = [Site("decoder", layer) for layer in range(c.depth)]

    @property
    def quantizer(self) -> MultiScaleQuantizer:
        return self._quantizer[0]

    def share(self, quantizer: MultiScaleQuantizer) -> None:
        self._quantizer = (quantizer,)

    @property
    def places(self) -> Tensor:
        """The embedding of position and scale per token, (1, N, dim)."""
        sizes = torch.tensor([side**2 for side in self.config.sides], device=self.pos_1LC.device)
        return self.pos_1LC + self.lvl_embed.weight.repeat_interleave(sizes, 0, output_size=self.config.tokens)

    def logits(self, hidden: Tensor, cond: Tensor) -> Tensor:
        """Return fp32 logits: head norm in fp32, head in the model's dtype. ``cond``: (rows, dim)."""
        return self.head(self.head_nm(hidden, cond).to(self.head.weight.dtype)).float()

    def teacher(self, labels: Tensor, tokens: Tensor) -> Tensor:
        """Return training logits (rows, N, vocab) for ``tokens`` (rows, N), each map given the coarser ones."""
        cond = self.class_emb(labels)
        fed = self.word_embed(self.quantizer.teacher(tokens).to(self.word_embed.weight.dtype))
        x = torch.cat((cond[:, None] + self.pos_start, fed), 1) + self.places
        method = Blockwise([side**2 for side in self.config.sides], x.device)
        return self.logits(self(Tokens(x, cond=self.modulations(cond)), Step(0, 1), method), cond)

    def condition(self, labels: Tensor, key: Tensor, layout: Layout, engine: Engine) -> Placed:
        classes = torch.cat((labels, torch.full_like(labels, self.config.classes))[: layout.rows // len(labels)])
        cond = engine.hold("class", self.class_emb(classes))
        return Placed(key, cond, engine.hold("modulations", self.modulations(cond)), engine.hold("places", self.places))

    def feed(self, step: Step, condition: Placed, f_hat: Tensor) -> Tokens:
        cond = condition.cond
        if not step.index:
            return Tokens(cond[:, None] + self.pos_start + condition.places[:, :1], cond=condition.modulations)
        span = slice(step.first, step.first + step.count)
        fed = self.word_embed(self.quantizer.next_map(f_hat, step.index).to(cond.dtype)) + condition.places[:, span]
        return Tokens(fed.repeat(len(cond) // len(f_hat), 1, 1), cond=self.modulations(cond) if self.recompute else condition.modulations)

    def guided(self, hidden: Tensor, step: Step, sampling: Sampling, condition: Placed) -> Tensor:
        return guide_scale(self.logits(hidden, condition.cond), sampling, step.index, len(self.config.sides))

    def drawn(self, logits: Tensor, step: Step, sampling: Sampling, condition: Placed) -> Tensor:
        return draw(logits, sampling, condition.key, torch.arange(step.first, step.first + step.count, device=logits.device))


def check_sides(config: VARConfig, path: str | Path) -> None:
    """Raise BadCheckpoint if the file's table of scales (``lvl_1L``) has other sides."""
    listed, _ = checkpoints.read(path)
    table = next((tensor for entry in listed for name, tensor in entry.tensors.items() if name.rpartition(".")[2] == "lvl_1L"), None)
    if table is None:
        return
    actual = tuple(math.isqrt(int(count)) for count in table.flatten().bincount())
    if actual != config.sides:
        raise BadCheckpoint(f"{str(path)!r} was trained with patch_nums {' '.join(map(str, actual))}; this model has "
                            f"{' '.join(map(str, config.sides))}.", remedy="Name the model of that resolution, such as var-d36-512.")
