"""GPT-2 over the pixels of an image, each a colour of a palette, in raster order.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), with a class in the place of the first token, as Chen et al.,
"Generative Pretraining from Pixels" (2020), generate colours. Parameters have the names of GPT-2. Differences from their code: linear
layers are torch's own, so their weights are transposed; the head is not tied to the embedding; nothing is dropped out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cachemark.cache.layout import Layout, Site, Step, Tokens
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.models.raster import RasterModel


@dataclass(frozen=True)
class GPTConfig:
    """Sizes. ``classes`` excludes the null class, whose id is ``classes``."""

    layers: int = 3
    heads: int = 4
    dim: int = 64
    vocab: int = 64
    classes: int = 10
    grid: int = 8


class Attention(nn.Module):
    """Projections of one block; the method computes the attention between them."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.c_attn, self.c_proj = nn.Linear(config.dim, 3 * config.dim), nn.Linear(config.dim, config.dim)

    def forward(self, x: Tensor, site: Site, step: Step, method: Method) -> Tensor:
        """(rows, tokens, dim) → (rows, tokens, dim)."""
        q, k, v = self.c_attn(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.c_proj(method.attend(site, step, q, k, v).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """c_proj(gelu(c_fc·x)), four times as wide inside."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(…, dim) → (…, dim)."""
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """Pre-norm: x += attention(norm(x)); x += mlp(norm(x))."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.dim), nn.LayerNorm(config.dim)
        self.attn, self.mlp = Attention(config), MLP(config.dim)

    def mix(self, site: Site, step: Step, tokens: Tokens, method: Method) -> Tokens:
        """Attention with its residual."""
        return tokens.with_x(tokens.x + self.attn(self.ln_1(tokens.x), site, step, method))

    def branch(self, tokens: Tokens) -> Tensor:
        """The MLP alone."""
        return self.mlp(self.ln_2(tokens.x))

    def join(self, tokens: Tokens, branch: Tensor) -> Tokens:
        """Residual of the MLP."""
        return tokens.with_x(tokens.x + branch)


class GPT(RasterModel):
    """GPT with learned position embeddings, so keys need no rotation."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.wce = nn.Embedding(config.classes + 1, config.dim)  # of classes and, last, the null class
        self.wte, self.wpe = nn.Embedding(config.vocab, config.dim), nn.Embedding(config.grid**2, config.dim)
        self.h = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f, self.lm_head = nn.LayerNorm(config.dim), nn.Linear(config.dim, config.vocab, bias=False)
        self.sites = [Site("decoder", layer) for layer in range(config.layers)]

    @property
    def blocks(self) -> nn.ModuleList:
        return self.h

    def layout(self, seeds: Sequence[int], sampling: Sampling, labels: Sequence[int] = ()) -> Layout:
        weight = self.lm_head.weight
        return layout(self.config, seeds, sampling, weight.dtype, str(weight.device))

    def first(self, labels: Tensor, layout: Layout) -> Tensor:
        return torch.cat((labels, torch.full_like(labels, self.config.classes)))[: layout.rows]

    def feed(self, fed: Tensor, step: Step, place: Tensor, starts: Tensor) -> Tokens:
        x = self.wte(fed.repeat(len(starts) // len(fed), 1)) if step.count else self.wce(fed)[:, None]
        return Tokens(x + self.wpe(place))

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(self.ln_f(hidden)).float()


def layout(config: GPTConfig, seeds: Sequence[int], sampling: Sampling, dtype: torch.dtype, device: str) -> Layout:
    """Return the shape of a generation; with guidance the unconditional rows follow the others."""
    copies = 2 if sampling.cfg_scale > 1 else 1
    branches = tuple(branch for branch in range(copies) for _ in seeds)
    return Layout(GPT.paradigm, (1,) * len(branches), config.grid, config.grid, config.heads, config.heads, config.dim // config.heads,
                  config.layers, tuple(seeds) * copies, branches, dtype, device)
