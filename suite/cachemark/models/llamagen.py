"""LlamaGen, class-conditional: a Llama-style transformer over raster-ordered VQ tokens.

Sun et al., "Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation" (2024); published checkpoints load under their own
names. ``llamagen_text.py`` has the text-to-image variant. What differs from the authors' code: attention reads only live entries (theirs:
a padded buffer under a mask), tokens are sampled by Gumbel-max keyed by the sample (theirs: ``multinomial``), and grouped K/V heads are
allowed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache.kernels import fused
from ..cache.layout import Layout, Site, Step, Tokens, guided_rows
from ..contract.method import Method, Uncached
from ..core.spec import Sampling
from .layers import AttentionSizes, Joined, RMSNorm, added, grid_angles, normed, rotate_pairs
from .raster import RasterModel


@dataclass(frozen=True)
class LlamaGenConfig(AttentionSizes):
    """Sizes. ``classes`` excludes the null class, whose id is ``classes``.

    ``kv_heads``: None for as many as heads.
    """

    layers: int
    heads: int
    dim: int
    vocab: int = 16384
    classes: int = 1000
    grid: int = 24
    kv_heads: int | None = None
    norm_eps: float = 1e-5
    rope_base: float = 10000.0

    @property
    def hidden(self) -> int:
        """The FFN width: two thirds of 4·dim, rounded up to a multiple of 256."""
        return -(-int(8 * self.dim / 3) // 256) * 256

    def layout(self, seeds: Sequence[int], sampling: Sampling, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Layout:
        """Return the layout: one condition entry per row; unconditional rows come last."""
        row_seeds, branches = guided_rows(seeds, sampling.cfg_scale > 1)
        return Layout(LlamaGen.paradigm, (1,) * len(branches), self.grid, self.grid, self.heads, self.groups, self.head_dim, self.layers,
                      row_seeds, branches, dtype, device)


SIZES = {
    "B": LlamaGenConfig(12, 12, 768, grid=16),
    "L": LlamaGenConfig(24, 16, 1024),
    "XL": LlamaGenConfig(36, 20, 1280),
    "XXL": LlamaGenConfig(48, 24, 1536),
    "3B": LlamaGenConfig(24, 32, 3200),
}
# Guidance of the authors' FID commands; top-k, top-p and temperature are off in all of them.
PAPER_CFG = {"B": 2.0, "L": 2.0, "XL": 1.75, "XXL": 1.75, "3B": 1.65}


@cache
@torch.inference_mode(False)  # a table first asked for by a generation must serve training too
def rope_table(head_dim: int, grid: int, base: float, device: torch.device) -> Tensor:
    """Return rotations of the class position and grid² tokens, (1 + grid², head_dim/2) complex64.

    The first half of the pairs rotates by row, the second by column. **The class position's entry is zero, not the identity**: its cached
    key is exactly zero, and published weights were trained with that.
    """
    places = torch.arange(grid, dtype=torch.float32, device=device)
    angles = grid_angles(places, places, head_dim, base)
    return torch.cat((torch.zeros(1, head_dim // 2, dtype=torch.complex64, device=device), torch.polar(torch.ones_like(angles), angles)))


class LlamaGenAttention(nn.Module):
    """Projections of one block; the method computes the attention."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.heads, self.groups, self.head_dim = config.heads, config.groups, config.head_dim
        self.wqkv = nn.Linear(config.dim, (config.heads + 2 * config.groups) * config.head_dim, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor, site: Site, step: Step, tokens: Tokens, method: Method) -> Tensor:
        """Map (rows, tokens, dim) to (rows, tokens, dim). ``tokens`` has the rotations."""
        assert tokens.rope is not None
        qkv = self.wqkv(x).unflatten(-1, (-1, self.head_dim))
        if fused.fuses(qkv):
            return self.wo(method.attend_turned(site, step, qkv, fused.Turn(tokens.rope, self.heads)).transpose(1, 2).flatten(2))
        turned = rotate_pairs(qkv[:, :, : self.heads + self.groups], tokens.rope).transpose(1, 2)
        q, k = turned[:, : self.heads], turned[:, self.heads :]
        v = qkv[:, :, self.heads + self.groups :].transpose(1, 2)
        return self.wo(method.attend(site, step, q, k, v).transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Pre-norm: x += attention(norm(x)); x += swiglu(norm(x))."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.attention = LlamaGenAttention(config)
        self.feed_forward = SwiGLU(config.dim, config.hidden)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.following: tuple[RMSNorm | None] = (None,)  # the next block's first norm; in a tuple, so that it is not a submodule

    def mix(self, site: Site, step: Step, tokens: Tokens, method: Method) -> Tokens:
        return added(tokens, self.attention(normed(tokens, self.attention_norm), site, step, tokens, method), self.ffn_norm)

    def branch(self, tokens: Tokens) -> Tensor:
        return self.feed_forward(normed(tokens, self.ffn_norm))

    def join(self, tokens: Tokens, branch: Tensor) -> Tokens:
        return added(tokens, branch, self.following[0])


class LlamaGen(RasterModel):
    """The transformer, with published parameter names."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.config = config
        self.cls_embedding: nn.Module = nn.Sequential(OrderedDict(embedding_table=nn.Embedding(config.classes + 1, config.dim)))
        self.tok_embeddings = nn.Embedding(config.vocab, config.dim)
        blocks = [TransformerBlock(config) for _ in range(config.layers)]
        for block, after in pairwise(blocks):
            block.following = (after.attention_norm,)
        self.layers = nn.ModuleList(blocks)
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab, bias=False)
        self.sites = [Site("decoder", layer) for layer in range(config.layers)]

    @property
    def rope(self) -> Tensor:
        """The rotation table on the model's device, (1 + N, head_dim/2) complex64."""
        c = self.config
        return rope_table(c.head_dim, c.grid, c.rope_base, self.output.weight.device)

    def layout(self, seeds: Sequence[int], sampling: Sampling, labels: Sequence[int] = ()) -> Layout:
        weight = self.output.weight
        return self.config.layout(seeds, sampling, weight.dtype, str(weight.device))

    @property
    def blocks(self) -> nn.ModuleList:
        return self.layers

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the final norm and head in the model's dtype; return fp32."""
        return self.output(self.norm(hidden)).float()

    def prefix_logits(self, labels: Tensor, tokens: Tensor) -> Tensor:
        """Return uncached fp32 logits (rows, 1 + T, vocab); row j predicts token j of ``tokens`` (rows, T)."""
        x = torch.cat((self.cls_embedding(labels[:, None]), self.tok_embeddings(tokens)), 1)
        return self.logits(self(Tokens(x, self.rope[: x.size(1)]), Step(0, 1), Uncached()))

    def teacher(self, labels: Tensor, tokens: Tensor) -> Tensor:
        """Return training logits (rows, N, vocab) for ``tokens`` (rows, N), given the earlier tokens."""
        return self.prefix_logits(labels, tokens[:, :-1])

    def first(self, labels: Tensor, layout: Layout) -> Tensor:
        return torch.cat((labels, torch.full_like(labels, self.config.classes))[: layout.rows // len(labels)])

    def feed(self, fed: Tensor, step: Step, place: Tensor, starts: Tensor) -> Tokens:
        x = self.tok_embeddings(fed.repeat(len(starts) // len(fed), 1)) if step.count else self.cls_embedding(fed[:, None])
        return Tokens(x, self.rope.index_select(0, place))


class SwiGLU(nn.Module):
    """w2(silu(w1·x) ⊙ w3·x), no biases."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.joined = Joined(self.w1, self.w3)

    def forward(self, x: Tensor) -> Tensor:
        if fused.fuses(x):
            return self.w2(fused.silu_mul(self.joined(x)))
        return self.w2(F.silu(self.w1(x)) * self.w3(x))
