"""Token maps, coarse to fine: the common part of the tokenizers of next-scale models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from ...cache.layout import Grid, scale_names
from ...core.errors import Unsupported

ABSENT = -1  # in place of the tokens of a scale that was not generated


class MapQuantizer:
    """Quantizer from token maps (B, h·w) int64 to one feature map (B, width, H, W) fp32, their sum.

    ``scales``: rows and columns of the maps; the last are H and W.
    """

    scales: tuple[Grid, ...]

    @abstractmethod
    def empty(self, batch: int) -> Tensor:
        """Return the feature map before the first scale."""

    @abstractmethod
    def add(self, f_hat: Tensor, codes: Tensor, scale: int) -> Tensor:
        """Return the feature map with the tokens (B, h·w) of scale ``scale`` (from 0) added."""

    @abstractmethod
    def next_map(self, f_hat: Tensor, scale: int) -> Tensor:
        """Return the model's input at scale ``scale`` ≥ 1, the resized feature map."""

    def split(self, tokens: Tensor) -> Sequence[Tensor]:
        """Split tokens (B, N) by scale. Raises Unsupported for another number of tokens."""
        sizes = [rows * columns for rows, columns in self.scales]
        if tokens.ndim != 2 or tokens.shape[1] != sum(sizes):
            raise Unsupported(f"Tokens of shape {tuple(tokens.shape)} do not fill the scales {' '.join(scale_names(self.scales))}.",
                              remedy=f"Use (batch, {sum(sizes)}).")
        return tokens.split(sizes, 1)

    def restore(self, tokens: Tensor) -> Tensor:
        """Return the feature map of all tokens (B, N). A scale whose tokens are ``ABSENT`` adds nothing."""
        parts, f_hat = self.split(tokens), self.empty(len(tokens)).to(tokens.device)
        for scale, part in enumerate(parts):
            drawn = (part[:, 0] != ABSENT)[:, None, None, None]
            f_hat = torch.where(drawn, self.add(f_hat, part.clamp_min(0), scale), f_hat)
        return f_hat
