"""Procedural scenes: an endless dataset of 64x64 images with known long-range structure.

An image shows one of ten shapes in front of a sky and a ground. Two small *swatches* in the first four rows (one line of tokens at 4 pixels
per token) announce the hues of object and ground; a footer in the last four rows repeats them mirrored. A model without access to the first
line paints the ground in a wrong color, which :mod:`cachemark.metrics.color_consistency` measures without a network.

Coordinates: x to the right, y downward, both in [-1, 1] at pixel centers. Hues in [0, 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cachemark.core.spec import digest
from cachemark.metrics.color_consistency import CLASSES, FOOTER_ROWS, SIZE, SWATCH_GROUND, SWATCH_OBJECT

VERSION = "scene-v2"
HUES = 6
TEXTURES = ("noise", "horizontal", "vertical", "checker")


@dataclass(frozen=True)
class Scene:
    """A batch of images (B, 3, 64, 64) float32 in [-1, 1], RGB, and their parameters.

    ``classes`` (B,) int64 index into :data:`CLASSES`; ``object_hue``, ``sky_hue``, ``ground_hue`` (B,) in [0, 1); ``centre`` (B, 2);
    ``horizon`` (B,); ``textures`` (B, 2) int64 index into :data:`TEXTURES` for object and ground.
    """

    images: Tensor
    classes: Tensor
    object_hue: Tensor
    sky_hue: Tensor
    ground_hue: Tensor
    centre: Tensor
    horizon: Tensor
    textures: Tensor


def stream(seed: int, purpose: str, index: int = 0, *, version: str = VERSION) -> int:
    """Return a seed for one purpose and index, so that training and held-out images share no numbers.

    ``version`` is the version of the data.
    """
    return int(digest([version, seed, purpose, index]), 16) % 2**63


def scenes(what: int | Tensor, seed: int, *, device: str | torch.device = "cpu") -> Scene:
    """Draw scenes: ``what`` is a count, or the classes (B,).

    Parameters are drawn on the CPU and images rendered on ``device``, so equal seeds give equal scenes up to rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    count = what if isinstance(what, int) else int(what.numel())
    drawn = torch.randint(len(CLASSES), (count,), generator=generator)
    classes = drawn if isinstance(what, int) else what.to("cpu", torch.int64).reshape(-1)
    if count and not 0 <= int(classes.min()) <= int(classes.max()) < len(CLASSES):
        raise ValueError(f"classes are in 0..{len(CLASSES) - 1}, got {int(classes.min())}..{int(classes.max())}")
    params = {name: value.to(device) for name, value in _draw(classes, generator).items()}
    return Scene(
        images=_render(params), classes=params["classes"], object_hue=params["h1"], sky_hue=params["h2"], ground_hue=params["h3"],
        centre=torch.stack((params["cx"], params["cy"]), 1), horizon=params["horizon"],
        textures=torch.stack((params["object_texture"], params["ground_texture"]), 1),
    )


def _draw(classes: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw all random parameters of a batch. The order of the draws is part of the data version."""
    n = classes.numel()

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(n, *shape, generator=generator) * (high - low) + low

    def index(count: int) -> Tensor:
        return torch.randint(count, (n,), generator=generator)

    first = index(HUES)
    third = (first + 1 + index(HUES - 1)) % HUES  # never the object's hue
    hues = torch.stack((first, index(HUES), third), 1) / HUES + uniform(-0.025, 0.025, 3)
    h1, h2, h3 = (hues % 1.0).unbind(1)
    period = 8.0 + 4.0 * index(2)
    return {
        "classes": classes, "h1": h1, "h2": h2, "h3": h3,
        "cx": uniform(-0.25, 0.25), "cy": uniform(-0.08, 0.04), "radius": uniform(0.40, 0.53), "horizon": uniform(0.38, 0.58),
        "period": period, "phase": uniform(0.0, 1.0) * period,
        "object_texture": index(len(TEXTURES)), "ground_texture": index(len(TEXTURES)),
        "noise": uniform(0.0, 1.0, 2, 8, 8), "split": uniform(-0.3, 0.3),
    }


def _render(p: dict[str, Tensor]) -> Tensor:
    """Paint sky, ground, object, swatches and footer: (B, 3, 64, 64) in [-1, 1]."""
    line = (torch.arange(SIZE, device=p["h1"].device, dtype=torch.float32) + 0.5) / SIZE * 2 - 1
    x, y = line.view(1, 1, -1), line.view(1, -1, 1)
    h1, h2, h3, cx, cy, horizon, radius = (p[k].view(-1, 1, 1) for k in ("h1", "h2", "h3", "cx", "cy", "horizon", "radius"))
    grains = torch.nn.functional.interpolate(p["noise"], size=(SIZE, SIZE), mode="bilinear", align_corners=False)

    height = ((y + 1) / (horizon + 1)).clamp(0, 1)
    image = hsv(h2, 0.42 - 0.32 * height, 0.80 + 0.18 * height)
    image = painted(image, hsv(h3, 0.75, 0.50 + 0.30 * _texture(p, "ground_texture", x, y, grains[:, 1])), y > horizon)
    inside = coverage(distance(p["classes"], (x - cx) / radius, (y - cy) / radius) * radius)
    image = painted(image, hsv(h1, 0.88, 0.55 + 0.40 * _texture(p, "object_texture", x - cx, y - cy, grains[:, 0])), inside)

    bright, dull = hsv(h1, 0.88, 0.85), hsv(h3, 0.75, 0.70)
    for (rows, columns), colour in ((SWATCH_OBJECT, bright), (SWATCH_GROUND, dull)):
        image[:, :, rows, columns] = colour
    image[:, :, FOOTER_ROWS] = painted(bright, dull, x < -p["split"].view(-1, 1, 1))
    return image * 2 - 1


def hsv(hue: Tensor, saturation: Tensor | float, value: Tensor | float) -> Tensor:
    """Convert three (B, H, W) planes of HSV to RGB (B, 3, H, W) in [0, 1], with broadcasting."""
    planes = []
    for offset in (5.0, 3.0, 1.0):
        k = (offset + 6.0 * hue) % 6.0
        planes.append(value - value * saturation * torch.minimum(k, 4.0 - k).clamp(0, 1))
    return torch.stack(torch.broadcast_tensors(*planes), 1)


def painted(below: Tensor, above: Tensor, share: Tensor) -> Tensor:
    """Blend ``above`` over ``below`` by ``share`` (B, H, W), boolean or in [0, 1]."""
    return torch.lerp(below, above, share.to(below.dtype).unsqueeze(1))


def coverage(distance: Tensor) -> Tensor:
    """Return the covered fraction of a pixel for signed distances in image units, negative inside."""
    return torch.sigmoid(-distance / (0.45 * 2 / SIZE))


def _texture(p: dict[str, Tensor], name: str, x: Tensor, y: Tensor, grain: Tensor) -> Tensor:
    """Return each image's texture in [0, 1]: noise, stripes along y or x, or a checkerboard."""
    period, phase = p["period"].view(-1, 1, 1), p["phase"].view(-1, 1, 1)

    def stripes(t: Tensor) -> Tensor:
        pixels = (t + 1) * SIZE / 2
        return torch.sigmoid(6 * torch.sin(2 * math.pi * (pixels + phase) / period))

    rows, columns = stripes(y).expand_as(grain), stripes(x).expand_as(grain)
    table = torch.stack((grain, rows, columns, 2 * (columns - 0.5) * (rows - 0.5) + 0.5), 1)  # the order of TEXTURES
    return table[torch.arange(table.shape[0], device=table.device), p[name]]


def distance(classes: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return the signed distance to each image's shape at (u, v), in radii; negative inside."""
    rho, theta = torch.hypot(u, v), torch.atan2(u, -v)
    a, b = u.abs().expand_as(rho), v.abs().expand_as(rho)
    v = v.expand_as(rho)
    shapes = (
        rho - 0.95,
        torch.maximum(a, b) - 0.82,
        torch.maximum(v - 0.85, (1.75 * a - (v + 0.95)) / 2),
        0.7 * (a + b - 1.05),
        (rho - 0.72).abs() - 0.24,
        torch.minimum(torch.maximum(a - 0.3, b - 1), torch.maximum(b - 0.3, a - 1)),
        rho - (0.68 + 0.27 * torch.cos(5 * theta)),
        torch.maximum(b - 0.95, 0.75 * (a - (0.15 + 0.8 * b))),
        rho - (0.78 + 0.18 * torch.cos(8 * theta)),
        torch.maximum(a - 0.45, b - 0.98),
    )
    return torch.stack(shapes, 1)[torch.arange(rho.shape[0], device=rho.device), classes]
