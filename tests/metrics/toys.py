"""Extractors without training, and features from a known distribution."""

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from cachemark.metrics.compute.extractor import Extractor
from cachemark.metrics.compute.image_features import ImageFeatures, RealImages

SIZE = 16


class Toy(nn.Module):
    """Twelve features of an image, one of the batch size, and five logits."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        means = nn.functional.adaptive_avg_pool2d(images.float(), 2).flatten(1) / 255
        return torch.cat((means, torch.full((len(images), 1), float(len(images)))), 1), 4 * means[:, :5]


def toy(digit: str = "7") -> Extractor:
    """Return an extractor with a :class:`Toy`; another digit gives another name."""
    return Extractor(digit * 64, Toy)


class SpatialToy(Toy):
    """The toy with twelve features by position, in the order of positions and channels, as a third output."""

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        by_position = nn.functional.adaptive_avg_pool2d(images.float().square(), 2).permute(0, 2, 3, 1).flatten(1) / 255**2
        return *super().forward(images), by_position


def spatial_toy() -> Extractor:
    """Return an extractor with a :class:`SpatialToy`; made when needed, since it imports torch-fidelity."""
    return Extractor("5" * 64, SpatialToy, spatial=True, batch=16)


def noise(count: int, seed: int = 0, side: int = SIZE) -> Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def png_files(images: Tensor, folder: Path) -> str:
    """Write images, bytes (N, 3, H, W), to PNG files and return their folder."""
    folder.mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{i:04d}.png")
    return str(folder)


def drawn(count: int, seed: int, shift: float = 0.0, features: int = 8) -> ImageFeatures:
    """Return features of a mixture with heavier tails than a normal distribution, and their logits."""
    draws, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(-1)
    mix, head = torch.randn(features, features, generator=fixed), torch.randn(features, 5, generator=fixed)
    raw = torch.randn(count, features, generator=draws) * (1 + 0.5 * torch.rand(count, 1, generator=draws))
    raw[:, 0] += torch.randint(0, 4, (count,), generator=draws)
    rows = raw @ mix / features**0.5 * (1 - shift) + shift
    return ImageFeatures("drawn-000000000000", rows, rows @ head)


def reference(count: int = 400, keep: int = 300) -> RealImages:
    """Return a reference of the same distribution with ``keep`` features."""
    full = RealImages.of(drawn(count, 10**6))
    return RealImages(full.extractor, full.count, full.mean, full.covariance, full.features[:keep], full.logits[:keep])
