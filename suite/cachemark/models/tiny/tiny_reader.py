"""The network that reads object, color, count, position and ground of captioned scenes.

It replaces an object detector: its answers are compared with the prompt, axis by axis.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .captions import AXES
from .stored import BundledWeights
from .tiny_features import FeaturesConfig, body, readable

NAME = "tiny-reader"
SIZES = FeaturesConfig(width=24, squeezed=16, features=96)


class TinyReader(nn.Module):
    """The convolutions of the feature network, and a linear head per caption axis."""

    def __init__(self, config: FeaturesConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or SIZES
        self.body = body(c)
        self.heads = nn.ModuleDict({axis: nn.Linear(c.features, len(choices)) for axis, choices in AXES.items()})

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Map images (B, 3, 64, 64), bytes or in [−1, 1], to logits (B, choices) by axis. Raises ValueError."""
        active = nn.functional.silu(self.body(readable(images, NAME)))
        return {axis: head(active) for axis, head in self.heads.items()}

    @torch.no_grad()
    def read(self, images: Tensor) -> dict[str, Tensor]:
        """Return the index (B,) int64 of the likeliest answer by axis."""
        return {axis: logits.argmax(1) for axis, logits in self(images).items()}


files = BundledWeights(NAME, TinyReader, FeaturesConfig)
load, metadata = files.load, files.metadata
