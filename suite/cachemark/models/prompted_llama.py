"""Text-to-image generators on a Llama that reads prompt ids."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..cache.layout import Layout, Step, Tokens
from ..core.spec import Sampling
from .llama import Llama, LlamaConfig, frequencies
from .prompts import Prompts
from .raster import RasterModel

NEVER = -1e9  # logit of a token that a place forbids: not infinite, so that the divergence of two distributions stays a number


@dataclass(frozen=True)
class PromptedConfig:
    """Sizes of the decoder; subclasses add a square ``grid``, or override ``lines`` and ``line``."""

    decoder: LlamaConfig
    line_ends: ClassVar[bool] = False

    @property
    def lines(self) -> int:
        """Lines of an image."""
        return int(vars(self)["grid"])

    @property
    def line(self) -> int:
        """Tokens of a line."""
        return self.lines


def layout(
    config: PromptedConfig, prompts: Prompts, labels: Sequence[int], seeds: Sequence[int], sampling: Sampling, dtype: torch.dtype,
    device: str,
) -> Layout:
    """Return the layout: one condition entry per prompt id; with guidance, unconditional rows come last."""
    copies = 2 if sampling.cfg_scale > 1 else 1
    branches = tuple(branch for branch in range(copies) for _ in seeds)
    decoder = config.decoder
    return Layout(RasterModel.paradigm, prompts.lengths(labels, copies), config.lines, config.line, decoder.heads, decoder.groups,
                  decoder.head_dim, decoder.layers, tuple(seeds) * copies, branches, dtype, device, line_ends=config.line_ends)


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
        return layout(self.config, self.prompts, labels, seeds, sampling, weight.dtype, str(weight.device))

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
