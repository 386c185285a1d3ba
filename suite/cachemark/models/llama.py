"""The Llama decoder with transformers' parameter names, and the base of text-to-image models.

Touvron et al., "LLaMA: Open and Efficient Foundation Language Models" (2023). K is cached after the q/k norm, if any, and after rotation.
Differences from the published code: attention reads only live entries, and rotations are computed in fp32 and rounded once (theirs: in
the model's dtype).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache.kernels import fused
from ..cache.layout import Layout, Site, Step, Tokens, guided_rows
from ..contract.method import Method
from ..core.spec import Sampling
from .layers import AttentionSizes, Joined, RMSNorm, added, normed
from .prompts import Prompts
from .raster import RasterModel

QK_NORM_EPS = 1e-5


@dataclass(frozen=True)
class LlamaConfig(AttentionSizes):
    """Sizes. ``hidden``: width of the MLP; ``kv_heads``: None for as many as heads.

    ``qk_norm``: normalize queries and keys over each head's channels before rotation. ``qkv_bias``: their projections have biases.
    """

    layers: int
    heads: int
    dim: int
    hidden: int
    vocab: int
    kv_heads: int | None = None
    norm_eps: float = 1e-6
    rope_base: float = 10000.0
    qk_norm: bool = False
    qkv_bias: bool = False


@cache
@torch.inference_mode(False)  # first asked for by a generation, it must serve training too
def frequencies(head_dim: int, base: float, device: torch.device) -> Tensor:
    """Return the angle of each channel pair per position, (head_dim/2,) fp32."""
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)


def rotate_halves(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate channels p and p + n, for p < n, by ``turns`` (rows, tokens, n) complex64.

    x: (rows, tokens, heads, head_dim), with head_dim ≥ 2·n; channels from 2·n on stay. Computed in fp32 and cast back.
    """
    turned = 2 * turns.size(-1)
    first, second = x[..., :turned].float().chunk(2, -1)
    cos, sin = turns.real[:, :, None], turns.imag[:, :, None]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)
    return rotated if turned == x.size(-1) else torch.cat((rotated, x[..., turned:]), -1)


class ChannelNorm(nn.Module):
    """LayerNorm over each head's channels, with one weight and bias for all heads."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(1, head_dim)), nn.Parameter(torch.zeros(1, head_dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=QK_NORM_EPS) * self.weight + self.bias


class LlamaAttention(nn.Module):
    """Projections of one block; the method computes the attention."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        wide, narrow = config.heads * config.head_dim, config.groups * config.head_dim
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(config.dim, width, config.qkv_bias) for width in (wide, narrow, narrow))
        self.o_proj = nn.Linear(wide, config.dim, bias=False)
        self.q_norm = ChannelNorm(config.head_dim) if config.qk_norm else nn.Identity()
        self.k_norm = ChannelNorm(config.head_dim) if config.qk_norm else nn.Identity()
        self.joined = Joined(self.q_proj, self.k_proj, self.v_proj)

    def forward(self, x: Tensor, site: Site, step: Step, tokens: Tokens, method: Method) -> Tensor:
        """Map (rows, tokens, dim) to (rows, tokens, dim). ``tokens`` has the rotations."""
        assert tokens.rope is not None
        if fused.fuses(x):
            qkv = self.joined(x).unflatten(-1, (-1, self.head_dim))
            both = self.q_norm, self.k_norm
            norms: Any = tuple(part for norm in both if isinstance(norm, ChannelNorm) for part in (norm.weight, norm.bias))
            turn = fused.Turn(tokens.rope, self.q_proj.out_features // self.head_dim, halves=True, norms=norms)
            return self.o_proj(method.attend_turned(site, step, qkv, turn).transpose(1, 2).flatten(2))
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate_halves(self.q_norm(q), tokens.rope), rotate_halves(self.k_norm(k), tokens.rope)
        out = method.attend(site, step, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.o_proj(out.transpose(1, 2).flatten(2))


class GatedMLP(nn.Module):
    """down(silu(gate·x) ⊙ up·x), no biases."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)
        self.joined = Joined(self.gate_proj, self.up_proj)

    def forward(self, x: Tensor) -> Tensor:
        if fused.fuses(x):
            return self.down_proj(fused.silu_mul(self.joined(x)))
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    """Pre-norm: x += attention(norm(x)); x += mlp(norm(x))."""

    mlp_class: ClassVar[type[nn.Module]] = GatedMLP

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = LlamaAttention(config), self.mlp_class(config.dim, config.hidden)
        self.input_layernorm = RMSNorm(config.dim, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.dim, config.norm_eps)
        self.following: tuple[RMSNorm | None] = (None,)  # the next block's first norm; in a tuple, so that it is not a submodule

    def mix(self, site: Site, step: Step, tokens: Tokens, method: Method) -> Tokens:
        mixed = self.self_attn(normed(tokens, self.input_layernorm), site, step, tokens, method)
        return added(tokens, mixed, self.post_attention_layernorm)

    def branch(self, tokens: Tokens) -> Tensor:
        return self.mlp(normed(tokens, self.post_attention_layernorm))

    def join(self, tokens: Tokens, branch: Tensor) -> Tokens:
        return added(tokens, branch, self.following[0])


class Llama(nn.Module):
    """Text embedding, blocks and final norm; the image model around it runs them."""

    block_class: ClassVar[type[LlamaBlock]] = LlamaBlock

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, config.dim)
        blocks = [self.block_class(config) for _ in range(config.layers)]
        for block, after in pairwise(blocks):
            block.following = (after.input_layernorm,)
        self.layers = nn.ModuleList(blocks)
        self.norm = RMSNorm(config.dim, config.norm_eps)

    @property
    def sites(self) -> list[Site]:
        return [Site("decoder", layer) for layer in range(self.config.layers)]

    def turns(self, positions: Tensor) -> Tensor:
        """Return rotations at ``positions`` (rows, tokens): (rows, tokens, head_dim/2) complex64."""
        c = self.config
        angles = positions[..., None] * frequencies(c.head_dim, c.rope_base, positions.device)
        return torch.polar(torch.ones_like(angles), angles)


# -- generators that read prompt ids -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PromptedConfig:
    """Sizes of the decoder; subclasses add a square ``grid``, or override ``lines`` and ``line``."""

    decoder: LlamaConfig
    line_ends: ClassVar[bool] = False

    @property
    def previewed(self) -> int:
        """Lines that a preview fills before the image."""
        return 0

    @property
    def lines(self) -> int:
        """Lines of an image."""
        return int(vars(self)["grid"])

    @property
    def line(self) -> int:
        """Tokens of a line."""
        return self.lines

    def layout(
        self, seeds: Sequence[int], sampling: Sampling, prompts: Prompts, labels: Sequence[int], dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> Layout:
        """Return the layout: one condition entry per prompt id; with guidance, unconditional rows come last."""
        decoder, (row_seeds, branches) = self.decoder, guided_rows(seeds, sampling.cfg_scale > 1)
        return Layout(RasterModel.paradigm, prompts.lengths(labels, 1 + max(branches)), self.lines, self.line, decoder.heads,
                      decoder.groups, decoder.head_dim, decoder.layers, row_seeds, branches, dtype, device, line_ends=self.line_ends,
                      previewed=self.previewed)


class PromptedLlama(RasterModel):
    """A generator on a Llama decoder; subclasses add a head and, if needed, a code embedding."""

    config: PromptedConfig
    prompts: Prompts

    @property
    @abstractmethod
    def decoder(self) -> Llama:
        """The decoder module."""

    def layout(self, seeds: Sequence[int], sampling: Sampling, labels: Sequence[int] = ()) -> Layout:
        weight = self.decoder.embed_tokens.weight
        return self.config.layout(seeds, sampling, self.prompts, labels, weight.dtype, str(weight.device))

    @property
    def blocks(self) -> nn.ModuleList:
        return self.decoder.layers

    def embedded(self, codes: Tensor) -> Tensor:
        """Embed image tokens (…) as inputs of the decoder (…, dim)."""
        return self.decoder.embed_tokens(codes)

    def first(self, labels: Tensor, layout: Layout) -> Tensor:
        return self.prompts.ids(labels.tolist(), layout.rows // len(labels), labels.device)

    def feed(self, fed: Tensor, step: Step, place: Tensor, starts: Tensor) -> Tokens:
        if step.count:
            x = self.embedded(fed).repeat(len(starts) // len(fed), 1, 1)
            return Tokens(x, self.decoder.turns(starts[:, None] + place - 1))
        return Tokens(self.decoder.embed_tokens(fed), self.decoder.turns(torch.arange(fed.size(1), device=fed.device).expand(fed.shape)))


def rotations(model: PromptedLlama) -> list[Tensor]:
    """Return the rotation table that a decoder computes once."""
    config = model.decoder.config
    return [frequencies(config.head_dim, config.rope_base, model.decoder.embed_tokens.weight.device)]
