"""GLM-Image's autoregressive stage: a GLM-4 decoder that generates a small preview, then the image.

Z.ai, "GLM-Image" (2026), as in the transformers and diffusers libraries, with 32×32 pixels per code. Positions have three axes: text
advances on all of them; the codes of an image share the first one and use the others for rows and columns. Guidance is not used. The
diffusion transformer that decodes an image from the codes is left out. Differences from the published code: special tokens cannot be
sampled among the codes, and tokens are sampled by Gumbel-max keyed by the sample. The token after the image is not generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache.kernels import fused
from ..cache.layout import Site, Step, Tokens
from ..contract.method import Method
from ..core.spec import Sampling
from .layers import RMSNorm, added, normed
from .llama import Llama, LlamaBlock, LlamaConfig, PromptedConfig, PromptedLlama, frequencies
from .prompts import FILE, Prompts, TextTokenizer, refuse_unreadable

PAPER = Sampling(temperature=0.9, top_p=0.75)  # of the published generation_config.json
CONTEXT = 131072
TOKENIZER = f"../processor/{FILE}"  # from the folder of the weights
UNUSED = ("model.visual.*", "model.vqmodel.*")  # in addition to the generator: both read images
SHOWN = 8  # pixels along a side of a code in a view


@dataclass(frozen=True)
class GlmImageConfig(PromptedConfig):
    """Sizes of the decoder, its vocabulary of codes and head, and sides of the image and preview in codes.

    ``sections``: frequencies of each of the three axes of positions. The preview fills whole lines of the image's width.
    """

    codes: int = 16384
    outputs: int = 16512
    grid: int = 32
    preview: int = 16
    sections: tuple[int, int, int] = (8, 12, 12)

    @property
    def previewed(self) -> int:
        """Lines of the image's width that the preview fills."""
        assert self.preview**2 % self.grid == 0, "the preview must fill whole lines"
        return self.preview**2 // self.grid

    @property
    def lines(self) -> int:
        return self.previewed + self.grid

    @property
    def line(self) -> int:
        return self.grid


PUBLISHED = GlmImageConfig(LlamaConfig(40, 32, 4096, 13696, 168064, kv_heads=2, norm_eps=1e-5, qkv_bias=True))


# -- prompts -----------------------------------------------------------------------------------------------------------
GRID_BEGIN, GRID_END, IMAGE = "<sop>", "<eop>", "<|dit_token_16384|>"


def prompts_of(config: GlmImageConfig, texts: Sequence[str], tokenizer: TextTokenizer) -> Prompts:
    """Return ids of each text, followed by the sizes of image and preview. Raises Unsupported.

    A text must not be empty, and must fit in the model's context together with the image. The unconditional row, for plans that set
    guidance, has the sizes alone.
    """
    begin, end, image = map(tokenizer.special, (GRID_BEGIN, GRID_END, IMAGE))
    sizes = [number for side in (config.grid, config.preview) for number in (begin, *tokenizer.ids(f"{side} {side}"), end)]
    conditional = tuple(tokenizer.whole((*tokenizer.ids(text.strip()), *sizes, image)) for text in texts)
    for text, ids in zip(texts, conditional, strict=True):
        refuse_unreadable(text, len(ids), CONTEXT - config.lines * config.line)
    return Prompts(conditional, ((*sizes, image),) * len(texts))


# -- positions ---------------------------------------------------------------------------------------------------------
@cache
def offsets(config: GlmImageConfig, device: torch.device) -> Tensor:
    """Return the positions of all codes (preview, then image) relative to the prompt's length, (codes, 3)."""
    grids, start = [], 0
    for side in (config.preview, config.grid):
        place = torch.arange(side**2, device=device)
        grids.append(start + torch.stack((torch.zeros_like(place), place // side, place % side), -1))
        start += side
    return torch.cat(grids)


# -- the model ---------------------------------------------------------------------------------------------------------
class FusedMLP(nn.Module):
    """down(silu(gate·x) ⊙ up·x), with gate and up in one projection, no biases."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Linear(dim, 2 * hidden, bias=False), nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        both = self.gate_up_proj(x)
        if fused.fuses(both):
            return self.down_proj(fused.silu_mul(both))
        gate, up = both.chunk(2, -1)
        return self.down_proj(up * F.silu(gate))


class GlmBlock(LlamaBlock):
    """x += norm(attention(norm(x))); x += norm(mlp(norm(x)))."""

    mlp_class = FusedMLP

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.post_self_attn_layernorm = RMSNorm(config.dim, config.norm_eps)
        self.post_mlp_layernorm = RMSNorm(config.dim, config.norm_eps)

    def mix(self, site: Site, step: Step, tokens: Tokens, method: Method) -> Tokens:
        mixed = self.self_attn(normed(tokens, self.input_layernorm), site, step, tokens, method)
        return added(tokens, self.post_self_attn_layernorm(mixed), self.post_attention_layernorm)

    def branch(self, tokens: Tokens) -> Tensor:
        return self.post_mlp_layernorm(super().branch(tokens))


class Glm(Llama):
    """The decoder, with a norm after each sublayer; a part of each head is rotated."""

    block_class = GlmBlock

    def __init__(self, config: LlamaConfig, sections: tuple[int, ...]) -> None:
        super().__init__(config)
        self.sections = sections

    def turns(self, positions: Tensor) -> Tensor:
        """Return rotations (rows, tokens, frequencies), complex64.

        ``positions``: (rows, tokens) or (rows, tokens, 3).
        """
        if positions.dim() == 2:
            positions = positions[..., None].expand(*positions.shape, len(self.sections))
        each = [positions[..., axis : axis + 1].expand(*positions.shape[:2], count) for axis, count in enumerate(self.sections)]
        angles = torch.cat(each, -1) * frequencies(2 * sum(self.sections), self.config.rope_base, positions.device)
        return torch.polar(torch.ones_like(angles), angles)


class GlmImage(PromptedLlama):
    """The generator, with published parameter names."""

    config: GlmImageConfig

    def __init__(self, config: GlmImageConfig, prompts: Prompts) -> None:
        super().__init__()
        self.config, self.prompts = config, prompts
        self.model = nn.ModuleDict({"language_model": Glm(config.decoder, config.sections)})
        self.lm_head = nn.Linear(config.decoder.dim, config.outputs, bias=False)
        self.sites = self.decoder.sites

    @property
    def decoder(self) -> Glm:
        module = self.model["language_model"]
        assert isinstance(module, Glm)
        return module

    def feed(self, fed: Tensor, step: Step, place: Tensor, starts: Tensor) -> Tokens:
        if not step.count:
            return super().feed(fed, step, place, starts)
        positions = starts[:, None, None] + offsets(self.config, fed.device)[place - 1]
        return Tokens(self.embedded(fed).repeat(len(starts) // len(fed), 1, 1), self.decoder.turns(positions))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of the codes; the head's further outputs are never sampled."""
        return self.lm_head(self.decoder.norm(hidden))[..., : self.config.codes].float().contiguous()


def tables(model: GlmImage) -> list[Tensor]:
    """Return the tables that are computed once: frequencies, and positions of codes."""
    device = model.decoder.embed_tokens.weight.device
    return [frequencies(2 * sum(model.config.sections), model.config.decoder.rope_base, device), offsets(model.config, device)]


class CodeView(nn.Module):
    """A view of codes, for want of the diffusion transformer: each code is a square of a color of its own."""

    def __init__(self, config: GlmImageConfig) -> None:
        super().__init__()
        self.config = config

    def decode(self, tokens: Tensor) -> Tensor:
        """Return views (B, 3, 8·grid, 8·grid) in [−1, 1] of tokens (B, N), without the preview."""
        side = self.config.grid
        codes = tokens[:, -(side**2) :].unflatten(1, (side, side))
        colors = torch.stack((codes % 32 / 31, codes // 32 % 32 / 31, codes // 1024 / max(1, (self.config.codes - 1) // 1024)), 1) * 2 - 1
        return colors.repeat_interleave(SHOWN, 2).repeat_interleave(SHOWN, 3)
