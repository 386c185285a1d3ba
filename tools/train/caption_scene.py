"""Captioned scenes: one to three equal objects next to a patterned ground, with captions.

An image is a pale field with the ground on one side and the objects in a row in the rest. Everything that a caption may name is drawn
independently from a seed; hue of the field, phase of the pattern, exact positions and sizes are free. Shapes and colors are defined in
:mod:`~tools.train.scene`. Lengths are in pixels, hues in [0, 1).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cachemark.metrics.color_consistency import CLASSES, SIZE
from cachemark.models.tiny.captions import AXES, PLACES, SHAPES, TEXTURES, Asked

from .scene import HUES, coverage, distance, hsv, painted, stream as versioned_stream

VERSION = "captions-v1"
DRAWN_AS = {"disc": "disc", "square": "square", "triangle": "triangle", "ring": "ring", "cross": "plus"}  # among the procedural scenes
MOST = 3  # objects
DEPTH = 28  # of the ground
PERIOD = 8  # of a pattern
NAMED = {"colour": 0.9, "position": 0.9, "ground_colour": 0.9}  # probability that a caption names an optional attribute


@dataclass(frozen=True)
class CaptionScene:
    """A batch of images (B, 3, 64, 64) in [-1, 1], and an index (B,) int64 per caption axis."""

    images: Tensor
    shown: dict[str, Tensor]

    def captions(self, seed: int) -> list[str]:
        """Return a caption of each image; the axes that it omits are drawn from ``seed``."""
        draws = torch.rand(len(self.images), len(NAMED), generator=torch.Generator().manual_seed(seed))
        named = dict(zip(NAMED, (draws < torch.tensor(list(NAMED.values()))).unbind(1), strict=True))
        named["texture"], named["ground_colour"] = named["position"], named["ground_colour"] & named["position"]
        return [self._request(i, {axis for axis, told in named.items() if not told[i]}).caption for i in range(len(self.images))]

    def _request(self, i: int, without: Collection[str]) -> Asked:
        """Return the request that image ``i`` meets, ``without`` some axes."""
        index: dict[str, Any] = {axis: None if axis in without else int(of[i]) for axis, of in self.shown.items()}
        return Asked(**index)


def stream(seed: int, purpose: str, index: int = 0) -> int:
    """Return a seed for one purpose and index of this data."""
    return versioned_stream(seed, purpose, index, version=VERSION)


def caption_scenes(what: int | Sequence[Asked], seed: int, *, device: str | torch.device = "cpu") -> CaptionScene:
    """Draw images: ``what`` is a count, or the request that each must meet.

    Parameters are drawn on the CPU and images rendered on ``device``.
    """
    requests = () if isinstance(what, int) else what
    params = _draw(what if isinstance(what, int) else len(what), torch.Generator().manual_seed(seed))
    for i, request in enumerate(requests):
        for axis in AXES:
            if (choice := getattr(request, axis)) is not None:
                params[axis][i] = choice
    params = {name: value.to(device) for name, value in params.items()}
    return CaptionScene(_render(params), {axis: params[axis] for axis in AXES})


def _draw(n: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw all random parameters of a batch. The order of the draws is part of the data version."""

    def index(count: int) -> Tensor:
        return torch.randint(count, (n,), generator=generator)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(n, *shape, generator=generator) * (high - low) + low

    chosen = {axis: index(len(choices)) for axis, choices in AXES.items()}
    return {
        **chosen, "field": index(HUES), "shift": index(2), "turned": uniform(-0.02, 0.02, 3), "radius": uniform(8.0, 9.5),
        "along": uniform(-1.0, 1.0, MOST), "across": uniform(-3.0, 3.0),
    }


def _render(p: dict[str, Tensor]) -> Tensor:
    """Paint field, ground and objects: (B, 3, 64, 64) in [-1, 1]."""
    line = torch.arange(SIZE, device=p["radius"].device, dtype=torch.float32) + 0.5
    x, y = line.view(1, 1, -1), line.view(1, -1, 1)
    hues = [((p[name] / HUES + p["turned"][:, i]) % 1.0).view(-1, 1, 1) for i, name in enumerate(("field", "ground_colour", "colour"))]
    field, ground, colour = hues
    place = p["position"].view(-1, 1, 1)
    upright = place < PLACES.index("left of")
    image = hsv(field, torch.tensor(0.12), 0.96).expand(-1, -1, SIZE, SIZE)
    depth = torch.where(upright, y, x)  # the border of the ground
    first = (place == PLACES.index("above")) | (place == PLACES.index("left of"))  # the objects come before the ground
    covered = torch.where(first, depth > SIZE - DEPTH, depth < DEPTH)
    image = painted(image, hsv(ground, 0.75, 0.45 + 0.4 * _pattern(p, x, y)), covered)
    along, across = torch.where(upright, x, y), depth
    middle = torch.where(first, (SIZE - DEPTH) / 2, (SIZE + DEPTH) / 2) + p["across"].view(-1, 1, 1)
    inside = torch.zeros(1, device=line.device)
    for i in range(MOST):
        count = (p["count"] + 1).view(-1, 1, 1)
        at = SIZE * (i + 0.5) / count + p["along"][:, i].view(-1, 1, 1)
        u, v = (along - at), (across - middle)
        u, v = torch.where(upright, u, v), torch.where(upright, v, u)
        inside = torch.maximum(inside, _object(p, u, v) * (i < count))
    return painted(image, hsv(colour, torch.tensor(0.88), 0.80), inside) * 2 - 1


def _object(p: dict[str, Tensor], u: Tensor, v: Tensor) -> Tensor:
    """Return the coverage (B, 64, 64) of one object per image at pixels (u, v) from its center."""
    radius = p["radius"].view(-1, 1, 1)
    u, v = u / radius, v / radius
    table = torch.tensor([CLASSES.index(DRAWN_AS.get(shape, "disc")) for shape in SHAPES], device=u.device)
    usual = distance(table[p["object"]], u, v)
    is_star = (p["object"] == SHAPES.index("star")).view(-1, 1, 1)
    return coverage(torch.where(is_star, _star(u, v), usual) * radius * 2 / SIZE)


def _star(u: Tensor, v: Tensor) -> Tensor:
    """Return the approximate signed distance to a five-pointed star; negative inside."""
    fifth = 2 * math.pi / 5
    turned = ((torch.atan2(u, -v) / fifth + 0.5) % 1.0 - 0.5).abs() * 2  # 0 at a point of the star, 1 between two
    return 0.7 * (torch.hypot(u, v) - (1.15 - 0.7 * turned))


def _pattern(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Return the pattern in [0, 1] of each ground, in the order of the textures."""
    shift = (p["shift"] * PERIOD / 2).view(-1, 1, 1)

    def wave(t: Tensor) -> Tensor:
        return torch.sin(2 * math.pi * (t + shift) / PERIOD)

    rows, columns = wave(y), wave(x)
    table = torch.stack(torch.broadcast_tensors(
        torch.sigmoid(6 * rows), torch.sigmoid(6 * columns), torch.sigmoid(6 * torch.sign(rows) * torch.sign(columns)),
        torch.sigmoid(8 * (rows + columns - 0.9)),
    ), 1)
    assert table.size(1) == len(TEXTURES)
    return table[torch.arange(len(table), device=table.device), p["texture"]]
