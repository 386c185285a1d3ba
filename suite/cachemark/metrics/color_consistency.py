"""Color consistency: regions of a procedural scene that match its color key in the first line.

Four regions are tested, from pixels alone:

0. the object has the hue of swatch 1,
1. the ground, in rows 52 to 55, has the hue of swatch 2,
2. the left end of the footer has the hue of swatch 2,
3. the right end of the footer has the hue of swatch 1.

The *hue of a region* is the direction of its mean opponent color (RGB projected along the gray axis): each pixel counts by its
chroma, so dark stripes and soft edges need no special case. Two hues match if they differ by less than 0.075 of the circle;
the swatches of an image differ by at least 0.117. A region without chroma has no hue and matches nothing.

The position of the object is unknown. Its pixels are those between color key and ground (rows 8 to 41, at least two rows above
every horizon) with a saturation above 0.6: the sky never exceeds 0.42, the object has 0.88 in every shape, and the hole of the
ring is sky. Fewer than 24 such pixels are no object; the smallest object has several times as many.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .base import ImageBatch, ImageMetric

if TYPE_CHECKING:
    from torch import Tensor

SIZE = 64
CLASSES = ("disc", "square", "triangle", "diamond", "ring", "plus", "flower", "hourglass", "gear", "tower")  # by label
TOLERANCE = 0.075

# Positions of the color key in pixels, as (rows, columns), where :mod:`tools.train.scene` paints it.
SWATCH_OBJECT = (slice(0, 4), slice(12, 20))
SWATCH_GROUND = (slice(0, 4), slice(44, 52))
FOOTER_ROWS = slice(60, 64)

GROUND = (slice(52, 56), slice(0, 64))
FOOTER_LEFT = (FOOTER_ROWS, slice(0, 16))
FOOTER_RIGHT = (FOOTER_ROWS, slice(48, 64))
WINDOW = (slice(8, 42), slice(0, 64))
OBJECT_SATURATION = 0.6
OBJECT_PIXELS = 24
LEAST_CHROMA = 0.05
REGIONS = ("object", "ground", "footer left", "footer right")


class ColorConsistency(ImageMetric):
    """Fraction of regions (object, ground, two footer corners) with the hue of the image's color key."""

    name = "color_consistency"
    title = "Color consistency"
    tip = ("Fraction of regions with the hue that the image's color key gives. It checks colors, not shapes, and each image "
           "alone, without the full cache.")
    unit = "share"
    within = (0.0, 1.0)
    of_model = True
    scope = "colors only, not shapes, their number or position"

    def measure(self, batch: ImageBatch) -> Tensor:
        return matching_colors(batch.images).float().mean(1)


def matching_colors(images: Tensor) -> Tensor:
    """Return which regions match the color key, booleans (B, 4) in the order of :data:`REGIONS`.

    ``images`` (B, 3, 64, 64) are RGB in [-1, 1]; values outside are clamped. Raises ValueError for another shape.
    """
    import torch

    if images.dim() != 4 or tuple(images.shape[1:]) != (3, SIZE, SIZE):
        raise ValueError(f"color consistency needs images of shape (B, 3, {SIZE}, {SIZE}), got {tuple(images.shape)}")
    rgb = images.float().clamp(-1, 1) / 2 + 0.5
    first, second = _hue(rgb, SWATCH_OBJECT), _hue(rgb, SWATCH_GROUND)
    matches = (
        _near(_object_hue(rgb), first),
        _near(_hue(rgb, GROUND), second),
        _near(_hue(rgb, FOOTER_LEFT), second),
        _near(_hue(rgb, FOOTER_RIGHT), first),
    )
    return torch.stack(matches, 1)


def _hue(rgb: Tensor, region: tuple[slice, slice]) -> Tensor:
    """Return the hue (B,) in [0, 1) of a rectangle of images (B, 3, 64, 64); NaN without chroma."""
    rows, columns = region
    return _direction(rgb[:, :, rows, columns].flatten(2).mean(2))


def _object_hue(rgb: Tensor) -> Tensor:
    """Return the hue (B,) of the saturated pixels above the ground; NaN if there are too few."""
    rows, columns = WINDOW
    pixels = rgb[:, :, rows, columns].flatten(2)
    high, low = pixels.amax(1), pixels.amin(1)
    saturated = (high - low > OBJECT_SATURATION * high).float()
    count = saturated.sum(1)
    hue = _direction((pixels * saturated.unsqueeze(1)).sum(2) / count.clamp(min=1).unsqueeze(1))
    return hue.where(count >= OBJECT_PIXELS, math.nan)


def _direction(color: Tensor) -> Tensor:
    """Return the hue in [0, 1) of mean colors (B, 3), the angle around the gray axis, or NaN."""
    red, green, blue = color.unbind(1)
    along, across = red - (green + blue) / 2, (green - blue) * math.sqrt(3) / 2
    hue = across.atan2(along) / (2 * math.pi) % 1.0
    return hue.where(along.hypot(across) >= LEAST_CHROMA, math.nan)


def _near(a: Tensor, b: Tensor) -> Tensor:
    """Return where two hues (B,) differ by less than the tolerance around the circle; NaN is near nothing."""
    return ((a - b + 0.5) % 1.0 - 0.5).abs() < TOLERANCE
