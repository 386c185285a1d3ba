"""Generators with one vocabulary for text and image codes, and a token at the end of each line.

The end-of-line token is an ordinary entry of its line: fed, cached, scored and evicted; its query is the line's last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .llama import Llama, PromptedConfig, PromptedLlama
from .prompts import Prompts

NEVER = -1e9  # logit of a token that a place forbids: not infinite, so that the divergence of two distributions stays a number


@dataclass(frozen=True)
class ImageIds:
    """Ids of image tokens: ``codes`` codes from ``first`` on, and the end of a line."""

    first: int
    codes: int
    line_end: int


@dataclass(frozen=True)
class LinedConfig(PromptedConfig):
    """Sizes: of the decoder, and of the image in units of ``codes_per_unit`` codes, height first."""

    height: int
    width: int
    ids: ImageIds
    codes_per_unit: ClassVar[int] = 1
    line_ends: ClassVar[bool] = True

    @property
    def lines(self) -> int:
        return self.codes_per_unit * self.height

    @property
    def line(self) -> int:
        """Tokens of a line, including the one that ends it."""
        return self.codes_per_unit * self.width + 1


class LinedLlama(PromptedLlama):
    """The generator, with the parameter names of transformers' Llama."""

    config: LinedConfig

    def __init__(self, config: LinedConfig, prompts: Prompts) -> None:
        super().__init__()
        self.config, self.prompts = config, prompts
        self.model = Llama(config.decoder)
        self.lm_head = nn.Linear(config.decoder.dim, config.decoder.vocab, bias=False)
        self.sites = self.model.sites

    @property
    def decoder(self) -> Llama:
        return self.model

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(self.model.norm(hidden)).float()

    @property
    def lined(self) -> tuple[int, int, int, int]:
        return self.config.ids.first, self.config.ids.codes, self.config.ids.line_end, self.config.line

    def allowed(self, logits: Tensor, place: Tensor) -> Tensor:
        """Allow only the line-end token at the end of a line, and only image codes elsewhere."""
        ids, all_ids = self.config.ids, torch.arange(logits.size(-1), device=logits.device)
        codes = (all_ids >= ids.first) & (all_ids < ids.first + ids.codes)
        at_end = ((place + 1) % self.config.line == 0)[:, None]
        return logits.masked_fill(~torch.where(at_end, all_ids == ids.line_end, codes), NEVER)


@dataclass(frozen=True)
class LinedDecoder:
    """Decoder of image tokens (B, N), line ends included.

    ``model``: decodes codes (B, h·w) on a grid (h, w). ``table``: the code of each id from ``ids.first`` on; None if ids are in the order
    of codes.
    """

    config: LinedConfig
    model: Any
    table: Tensor | None = None

    def decode(self, tokens: Tensor) -> Tensor:
        """Return images (B, 3, H, W), nominally in [−1, 1]."""
        c = self.config
        codes = tokens.unflatten(1, (c.lines, c.line))[:, :, :-1].flatten(1) - c.ids.first
        codes = codes.clamp(0, c.ids.codes - 1)
        images: Tensor = self.model.decode(codes if self.table is None else self.table.to(codes.device)[codes], (c.lines, c.line - 1))
        return images
