"""Small networks that read procedural scenes: their features, and the attributes of a caption."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .captions import AXES
from .stored import BundledWeights
from .tokenizers import GROUPS

SIDE = 64
HEADS = {"class": 10, "object_hue": 6, "sky_hue": 6, "ground_hue": 6, "object_texture": 4, "ground_texture": 4}
CONSISTENT = ("object", "ground", "footer left", "footer right", "untouched")


@dataclass(frozen=True)
class FeaturesConfig:
    """Sizes: channels at half resolution (``width``) and at an eighth (``squeezed``), and features."""

    width: int = 32
    squeezed: int = 24
    features: int = 128


class TinyFeatures(nn.Module):
    """The feature network of procedural scenes: 64×64 images to a vector of their content.

    It replaces Inception for FID: :mod:`cachemark.metrics.compute.distribution` compares its features. Convolutions at 32×32, 16×16 and
    8×8, a linear layer to the features, and a head per attribute. Spatial positions are not pooled, because color consistency depends on
    them.

    ``centre`` and ``deviation`` (features,) standardize features over real images, so that all units count alike.
    """

    centre: Tensor
    deviation: Tensor

    def __init__(self, config: FeaturesConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or FeaturesConfig()
        self.body = body(c)
        self.heads = nn.ModuleDict({name: nn.Linear(c.features, size) for name, size in HEADS.items()})
        self.consistent = nn.Linear(c.features, len(CONSISTENT))
        self.register_buffer("centre", torch.zeros(c.features))
        self.register_buffer("deviation", torch.ones(c.features))

    def embed(self, images: Tensor) -> Tensor:
        """Map images (B, 3, 64, 64), bytes or in [−1, 1], to features (B, features), not standardized.

        Raises ValueError for another shape.
        """
        return self.body(readable(images, "tiny-features"))

    def judge(self, embedded: Tensor) -> dict[str, Tensor]:
        """Return logits (B, choices) by attribute, and one per entry of CONSISTENT, for image embeddings."""
        active = nn.functional.silu(embedded)
        return {**{name: head(active) for name, head in self.heads.items()}, "consistent": self.consistent(active)}

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Map images to standardized features (B, features) and class logits (B, 10)."""
        embedded = self.embed(images)
        return (embedded - self.centre) / self.deviation, self.heads["class"](nn.functional.silu(embedded))


def body(c: FeaturesConfig) -> nn.Sequential:
    """Build the convolutions and the layer to the features."""
    w = c.width
    return nn.Sequential(
        nn.PixelUnshuffle(2), nn.Conv2d(12, w, 3, padding=1),
        *_layer(w, 2 * w, stride=2), *_layer(2 * w, 2 * w), *_layer(2 * w, 4 * w, stride=2), *_layer(4 * w, 4 * w),
        nn.GroupNorm(GROUPS, 4 * w), nn.SiLU(), nn.Conv2d(4 * w, c.squeezed, 1),
        nn.Flatten(), nn.Linear(c.squeezed * (SIDE // 8) ** 2, c.features),
    )


def readable(images: Tensor, name: str) -> Tensor:
    """Check and scale images (B, 3, 64, 64), bytes or in [−1, 1]. Raises ValueError for another shape."""
    if images.dim() != 4 or tuple(images.shape[1:]) != (3, SIDE, SIDE):
        raise ValueError(f"{name} needs images of shape (B, 3, {SIDE}, {SIDE}), got {tuple(images.shape)}")
    return images if images.is_floating_point() else images.float() / 127.5 - 1


def _layer(before: int, after: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return nn.GroupNorm(GROUPS, before), nn.SiLU(), nn.Conv2d(before, after, 3, stride=stride, padding=1)


class TinyReader(nn.Module):
    """The network that reads object, color, count, position and ground of captioned scenes.

    It replaces an object detector: its answers are compared with the prompt, axis by axis. The convolutions of the feature network, and
    a linear head per caption axis.
    """

    def __init__(self, config: FeaturesConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or FeaturesConfig(width=24, squeezed=16, features=96)
        self.body = body(c)
        self.heads = nn.ModuleDict({axis: nn.Linear(c.features, len(choices)) for axis, choices in AXES.items()})

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Map images (B, 3, 64, 64), bytes or in [−1, 1], to logits (B, choices) by axis. Raises ValueError."""
        active = nn.functional.silu(self.body(readable(images, "tiny-reader")))
        return {axis: head(active) for axis, head in self.heads.items()}

    @torch.no_grad()
    def read(self, images: Tensor) -> dict[str, Tensor]:
        """Return the index (B,) int64 of the likeliest answer by axis."""
        return {axis: logits.argmax(1) for axis, logits in self(images).items()}


FEATURE_WEIGHTS = BundledWeights("tiny-features", TinyFeatures, FeaturesConfig)
READER_WEIGHTS = BundledWeights("tiny-reader", TinyReader, FeaturesConfig)
