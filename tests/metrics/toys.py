"""Extractors that need no training, and features drawn from a known distribution, for tests of what is done with features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cachemark.metrics.compute.extractor import register
from cachemark.metrics.compute.image_features import ImageFeatures, RealImages

SIZE = 16


class Toy(nn.Module):
    """Twelve features that say what the picture shows, one that says how many came with it, and five logits."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        means = nn.functional.adaptive_avg_pool2d(images.float(), 2).flatten(1) / 255
        return torch.cat((means, torch.full((len(images), 1), float(len(images)))), 1), 4 * means[:, :5]


def toy(digit: str = "7") -> str:
    """The name of an extractor that asks a :class:`Toy`; another digit gives another name."""
    return register(digit * 64, Toy)


def noise(count: int, seed: int = 0) -> Tensor:
    """Images (count, 3, 16, 16) in [-1, 1]."""
    return torch.rand(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def drawn(count: int, seed: int, shift: float = 0.0, features: int = 8) -> ImageFeatures:
    """Features of a mixture, with heavier tails than a normal distribution, and logits that follow from them."""
    draws, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(-1)
    mix, head = torch.randn(features, features, generator=fixed), torch.randn(features, 5, generator=fixed)
    raw = torch.randn(count, features, generator=draws) * (1 + 0.5 * torch.rand(count, 1, generator=draws))
    raw[:, 0] += torch.randint(0, 4, (count,), generator=draws)
    rows = raw @ mix / features**0.5 * (1 - shift) + shift
    return ImageFeatures("drawn-000000000000", rows, rows @ head)


def reference(count: int = 400, keep: int = 300) -> RealImages:
    """A reference of the same distribution, which holds ``keep`` features."""
    full = RealImages.of(drawn(count, 10**6))
    return RealImages(full.extractor, full.count, full.mean, full.covariance, full.features[:keep], full.logits[:keep])
