"""Infinity, text-to-image: a transformer that predicts maps of bitwise tokens, coarse to fine.

Han et al., "Infinity: Scaling Bitwise AutoRegressive Modeling for High-Resolution Image Synthesis" (CVPR 2025); published checkpoints
load under their own names. Text enters by cross-attention and as the first map's input, never as cache entries. What differs from the
authors' code: everything is computed in the model's dtype (theirs keeps residuals and K in fp32 under autocast and rounds inputs of
cross-attention to bf16), modulations are projected once per generation (theirs: in every scale), texts are padded under a mask to the
longest of the list (theirs: concatenated), and bits are sampled by Gumbel-max keyed by the sample. Guidance is one
number for all scales and acts on logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache.engines import Engine
from ..cache.kernels import fused
from ..cache.layout import Grid, Layout, ScaleWork, Site, Step, Tokens, squares
from ..contract.block import Branch
from ..contract.method import Method
from ..core.spec import Sampling
from .infinity_scales import SIDES
from .layers import MLP, Following, Projection, RMSNorm, add_shaded, affine, grid_angles, modulation, shaded
from .sampling import draw, guide
from .scales import Given, HeadNorm, ModulatedBlock, ScaleModel, ScaleSizes
from .text_features import lengths_of
from .var import VARAttention
from .vision.bsq import BitQuantizer, packed_bits

LEVELS = 15  # rows of the published table of scales
POOL_HEAD = 128  # channels of the text per head of its pooling
MLP_UNIT = 256  # the MLP's width is a multiple of it
BUFFERS = ("*.zero_k_bias",)  # of published files: zeros


@dataclass(frozen=True)
class InfinityConfig(ScaleSizes):
    """Sizes. ``chunks``: groups of blocks in published names.

    ``scales``: rows and columns of the token maps, coarse to fine; ``finest``: the map that defines the unit of positions.
    ``text``: channels of the text encoder; ``longest``: tokens of a text. ``width``, ``patch``: of the image tokenizer; a token has
    ``width``·``patch``² bits.
    """

    depth: int
    heads: int
    dim: int
    chunks: int = 8
    scales: tuple[Grid, ...] = squares(SIDES)
    finest: Grid = (SIDES[-1], SIDES[-1])
    width: int = 32
    patch: int = 1
    text: int = 2048
    longest: int = 512
    rope_base: float = 10000.0
    norm_eps: float = 1e-6

    @property
    def bits(self) -> int:
        return self.width * self.patch**2

    @property
    def hidden(self) -> int:
        """The width of the MLP: 4·dim, rounded half to even to a multiple of 256."""
        return MLP_UNIT * max(1, round(4 * self.dim / MLP_UNIT))

    def work(self, text: int = 0) -> ScaleWork:
        block = 6 * self.dim**2 + 2 * self.dim * self.hidden
        return ScaleWork(block, 2 * self.dim * self.bits, 2 * self.dim**2, self.bits * self.dim, text=text, text_block=2 * self.dim**2)


SIZES = {"2B": InfinityConfig(32, 16, 2048), "8B": InfinityConfig(40, 28, 3584, width=14, patch=2)}


@cache
@torch.inference_mode(False)  # first asked for by a generation, it must serve training too
def rope_table(head_dim: int, scales: tuple[Grid, ...], finest: Grid, base: float, device: torch.device) -> Tensor:
    """Return rotations of all tokens, (N, head_dim/2) complex64: first half by row, second by column.

    Positions are in units of ``finest``, the ratio's last map of 1024 pixels, whatever the resolution, rounded half to even.
    """
    def places(side: int, unit: int) -> Tensor:
        return torch.round(torch.arange(side, dtype=torch.float32, device=device) * (unit / side))

    angles = torch.cat([grid_angles(places(rows, finest[0]), places(columns, finest[1]), head_dim, base) for rows, columns in scales])
    return torch.polar(torch.ones_like(angles), angles)


class TextAttention(nn.Module):
    """Attention to the visible entries of a text, with softmax scale 1/√head_dim and no K bias.

    Without ``queries``, one learned query for all rows pools the text.
    """

    def __init__(self, dim: int, text: int, heads: int, *, queries: bool) -> None:
        super().__init__()
        self.heads = heads
        self.mat_q: nn.Linear | nn.Parameter = nn.Linear(dim, dim) if queries else nn.Parameter(torch.zeros(1, heads, dim // heads))
        self.mat_kv = Projection(text, 2 * dim, bias=False)
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor | None, text: Tensor, visible: Tensor) -> Tensor:
        """Map ``x`` (rows, tokens, dim) to its shape.

        ``text`` (rows, longest, width); ``visible`` (rows, longest) bool.
        """
        if isinstance(self.mat_q, nn.Parameter):
            queries = self.mat_q.expand(len(text), -1, -1)[:, :, None]
        else:
            queries = self.mat_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        bias = torch.cat((torch.zeros_like(self.v_bias), self.v_bias))
        k, v = self.mat_kv(text, bias).unflatten(-1, (2, self.heads, -1)).transpose(1, 3).unbind(2)
        return self.proj(self.mixed(queries, k, v, visible[:, None, None]).transpose(1, 2).flatten(2))

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        """Apply softmax attention to (rows, heads, tokens, head_dim) each."""
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


class InfinityBlock(ModulatedBlock):
    """Attention to the maps, then to the text without a gate, then the MLP."""

    def __init__(self, config: InfinityConfig, layer: int) -> None:
        super().__init__(layer, config.norm_eps)
        dim = config.dim
        self.ada_gss = nn.Parameter(torch.zeros(1, 1, 6, dim))
        self.sa = VARAttention(dim, config.heads)
        self.ca = TextAttention(dim, dim, config.heads, queries=True)
        self.ca_norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.ffn = MLP(dim, config.hidden, dim, approximate="tanh")

    def branches(self, site: Site, step: Step, method: Method) -> list[Branch]:
        def attention(tokens: Tokens) -> Tensor:
            return self.sa(self.modulated(tokens, 0), site, step, tokens, method)

        def text(tokens: Tokens) -> Tensor:
            assert tokens.text is not None
            assert tokens.text_shown is not None
            normed = shaded(tokens, affine(self.ca_norm)) if fused.fuses(tokens.x) else self.ca_norm(tokens.x)
            return self.ca(normed, tokens.text, tokens.text_shown)

        def added(tokens: Tokens, out: Tensor) -> Tokens:
            if fused.fuses(tokens.x):
                return add_shaded(tokens, out, self.shade(tokens, 1))
            return tokens.with_x(tokens.x + out)

        return [Branch(attention, partial(self.gated, which=0)), Branch(text, added), self.mlp]

    def following(self, tokens: Tokens, which: int) -> Following | None:
        return affine(self.ca_norm) if which == 0 else super().following(tokens, which)


@dataclass(frozen=True)
class Texts(Given):
    """Constants with the texts as blocks read them, (rows, longest, dim), and a mask of visible entries."""

    by_row = (*Given.by_row, "text", "visible")
    text: Tensor
    visible: Tensor


class Infinity(ScaleModel[Texts]):
    """The transformer, with published parameter names.

    ``texts``: features (n, text channels) of each text, by label. ``recompute``: project modulations in every scale, as the authors do.
    """

    config: InfinityConfig

    def __init__(self, config: InfinityConfig, texts: Sequence[Tensor] = (), *, recompute: bool = False) -> None:
        super().__init__()
        self.config, self.texts, self.recompute = config, texts, recompute
        self.longest = max(lengths_of(texts), default=0)
        self._quantizer = BitQuantizer(config.scales, config.width, config.patch)
        c = config
        self.cfg_uncond = nn.Parameter(torch.zeros(c.longest, c.text))
        self.text_norm = RMSNorm(c.text, c.norm_eps)
        self.text_proj_for_sos = nn.ModuleDict({"ca": TextAttention(c.dim, c.text, c.text // POOL_HEAD, queries=False)})
        self.text_proj_for_ca = nn.Sequential(nn.Linear(c.text, c.dim), nn.GELU(approximate="tanh"), nn.Linear(c.dim, c.dim))
        self.pos_start = nn.Parameter(torch.zeros(1, 1, c.dim))
        self.lvl_embed = nn.Embedding(LEVELS, c.dim)
        self.word_embed = nn.Linear(c.bits, c.dim)
        self.shared_ada_lin = modulation(c.dim, 6)
        self.head_nm = HeadNorm(c.dim, c.norm_eps)
        self.head = nn.Linear(c.dim, 2 * c.bits)
        self.stacked = [InfinityBlock(c, layer) for layer in range(c.depth)]
        for block, after in pairwise(self.stacked):
            block.after = (after,)
        chunks = (self.stacked[at : at + c.depth // c.chunks] for at in range(0, c.depth, c.depth // c.chunks))
        self.block_chunks = nn.ModuleList(nn.ModuleDict({"module": nn.ModuleList(chunk)}) for chunk in chunks)
        self.sites = [Site("decoder", layer) for layer in range(c.depth)]

    @property
    def quantizer(self) -> BitQuantizer:
        return self._quantizer

    @property
    def rope(self) -> Tensor:
        """The rotation table on the model's device, (N, head_dim/2) complex64."""
        c = self.config
        return rope_table(c.head_dim, c.scales, c.finest, c.rope_base, self.head.weight.device)

    def read(self, labels: Sequence[int], copies: int) -> tuple[Tensor, Tensor]:
        """Return normed text features (rows, longest, channels) and the mask of visible entries.

        With two ``copies``, unconditional rows follow: as many learned vectors as the sample's text is long.
        """
        weight = self.cfg_uncond
        wide = self.longest  # of all texts, so that every batch has one shape
        read = [self.texts[label] for label in labels]
        lengths = torch.tensor([*map(len, read)], device=weight.device).repeat(copies)
        visible = torch.arange(wide, device=weight.device) < lengths[:, None]
        features = torch.stack([F.pad(text, (0, 0, 0, wide - len(text))) for text in read]).to(weight)
        if copies > 1:
            features = torch.cat((features, weight[:wide].expand_as(features)))
        return self.text_norm(features), visible

    def logits(self, hidden: Tensor, cond: Tensor) -> Tensor:
        """Return fp32 logits (rows, tokens, bits, 2) of 0 and 1 for every bit."""
        return self.head(self.head_nm(hidden, cond).to(self.head.weight.dtype)).float().unflatten(-1, (-1, 2))

    def condition(self, labels: Tensor, key: Tensor, layout: Layout, engine: Engine) -> Texts:
        features, visible = self.read(labels.tolist(), layout.rows // len(labels))
        cond = engine.hold("cond", self.text_proj_for_sos["ca"](None, features, visible)[:, 0])
        text = engine.hold("text", self.text_proj_for_ca(features))
        return Texts(key, cond, engine.hold("modulations", self.modulations(cond)), text, engine.hold("shown", visible))

    def feed(self, step: Step, texts: Texts, f_hat: Tensor) -> Tokens:
        cond, level = texts.cond, self.lvl_embed.weight[step.index]
        shades = self.modulations(cond) if self.recompute and step.index else texts.modulations
        if step.index:
            fed = self.word_embed(self.quantizer.next_map(f_hat, step.index).to(cond.dtype)) + level
            x = fed.repeat(len(cond) // len(f_hat), 1, 1)
        else:
            x = cond[:, None] + self.pos_start + level
        turns = self.rope[step.first : step.first + step.count]
        return Tokens(x, turns, shades, texts.text, texts.visible)

    def guided(self, hidden: Tensor, step: Step, sampling: Sampling, texts: Texts) -> Tensor:
        return guide(self.logits(hidden, texts.cond), sampling, 0)

    def drawn(self, logits: Tensor, step: Step, sampling: Sampling, texts: Texts) -> Tensor:
        bits = self.config.bits
        places = torch.arange(step.first * bits, (step.first + step.count) * bits, device=logits.device)
        return packed_bits(draw(logits.flatten(1, 2), sampling, texts.key, places).unflatten(1, (-1, bits)))
