"""Generators in which a Llama reads the ids of a prompt and then draws the tokens of an image: how they are fed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..cache.layout import Layout, Step, Tokens
from ..core.spec import Sampling
from .llama import Llama, LlamaConfig, frequencies
from .prompts import Prompts
from .raster import RasterModel

NEVER = -1e9  # logit of a token that a place forbids: not infinite, so that the divergence of two distributions stays a number


def prompted_layout(
    decoder: LlamaConfig, prompts: Prompts, labels: Sequence[int], seeds: Sequence[int], sampling: Sampling, grid: tuple[int, int],
    dtype: torch.dtype, device: str, *, line_ends: bool = False,
) -> Layout:
    """Shape of a generation of ``grid``, (lines, tokens a line). A row has as many condition entries as its prompt has ids; with guidance
    the unconditional rows come last."""
    copies = 2 if sampling.cfg_scale > 1 else 1
    branches = tuple(branch for branch in range(copies) for _ in seeds)
    return Layout(RasterModel.paradigm, prompts.lengths(labels, copies), *grid, decoder.heads, decoder.groups, decoder.head_dim,
                  decoder.layers, tuple(seeds) * copies, branches, dtype, device, line_ends=line_ends)


class PromptedLlama(RasterModel):
    """A generator on a Llama decoder. What a model adds is its head, and how image tokens are embedded where text's table does not."""

    prompts: Prompts

    @property
    @abstractmethod
    def decoder(self) -> Llama:
        """The decoder, among the model's parameters."""

    @property
    def blocks(self) -> nn.ModuleList:
        return self.decoder.layers

    def embedded(self, codes: Tensor) -> Tensor:
        """Image tokens (…) to inputs of the decoder (…, dim)."""
        return self.decoder.embed_tokens(codes)

    def first(self, labels: Tensor, layout: Layout) -> Tensor:
        return self.prompts.ids(labels.tolist(), layout.rows // len(labels), labels.device)

    def feed(self, fed: Tensor, step: Step, place: Tensor, starts: Tensor) -> Tokens:
        if step.count:
            x = self.embedded(fed).repeat(len(starts) // len(fed), 1, 1)
            return Tokens(x, self.decoder.turns(starts[:, None] + place - 1))
        return Tokens(self.decoder.embed_tokens(fed), self.decoder.turns(torch.arange(fed.size(1), device=fed.device).expand(fed.shape)))


def rotations(model: PromptedLlama) -> list[Tensor]:
    """Return the table of rotations that a decoder computes once, beside its parameters."""
    config = model.decoder.config
    return [frequencies(config.head_dim, config.rope_base, model.decoder.embed_tokens.weight.device)]
