"""Inter-scale similarity of AMS-KV, and a profile of it with the attention to each scale, by layer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...cache.arena import Memory
from ...cache.layout import Layout, Site, Step
from ...contract.method import Method


def inter_scale(k: Tensor, before: Tensor) -> Tensor:
    """Return S of AMS-KV (Eq. 3) as minus the mean of (k − k̂)², a scalar fp32 tensor.

    The mean is over rows, heads, tokens and channels. ``k`` (rows, heads, side², head_dim): keys of a scale as cached, after normalization
    if any. ``before``: **all** keys of the previous scale, here resized bilinearly to the side of ``k`` (corners not aligned). 0 is equal,
    lower is less similar. Eq. 3 prints a norm without its normalization; the mean square is our reading, which fits the paper's thresholds
    near −0.01.
    """
    with torch.autocast(k.device.type, enabled=False):
        resized = F.interpolate(_maps(before), size=(math.isqrt(k.size(2)),) * 2, mode="bilinear", align_corners=False)
        return -(_maps(k) - resized).square().mean()


def _maps(k: Tensor) -> Tensor:
    """Reshape (rows, heads, side², head_dim) to (rows·heads, head_dim, side, side) fp32."""
    return k.flatten(0, 1).transpose(1, 2).unflatten(2, (math.isqrt(k.size(2)), -1)).float()


class ScaleProfile(Method):
    """The full cache, which measures inter-scale similarity and attention to scales in each layer.

    One instance serves many generations and averages over their rows. Not a method to benchmark.
    """

    needs_mass = True

    def __init__(self) -> None:
        self.rows = 0
        self._similarity: dict[tuple[int, int], float] = defaultdict(float)
        self._mass: dict[tuple[int, int], Tensor] = {}
        self._before: dict[Site, Tensor] = {}

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        super().begin(layout, sites, memory)
        self.rows += layout.rows

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if step.index:
            self._similarity[site.layer, step.index] += float(inter_scale(k, self._before[site])) * k.size(0)
        self._before[site] = k
        return super().attend(site, step, q, k, v)

    def observe(self, site: Site, step: Step, slot: object, q: Tensor, mass: Tensor | None) -> None:
        assert mass is not None
        sizes = [side**2 for side in self.layout.scales[: step.scale]]
        shares = torch.stack([part.sum() for part in mass.double().split(sizes, -1)]).cpu() / (q.size(1) * q.size(2))
        key = site.layer, step.index
        self._mass[key] = self._mass.get(key, 0) + shares

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts that :meth:`AMSKV.calibrate` takes."""
        return {"scales": list(self.layout.scales), "similarity": [list(layer) for layer in self.similarity]}

    @property
    def similarity(self) -> tuple[tuple[float, ...], ...]:
        """S of every layer at scale 2, 3, …: (layers, scales − 1)."""
        layers, scales = self.layout.layers, len(self.layout.scales)
        return tuple(tuple(self._similarity[layer, i] / self.rows for i in range(1, scales)) for layer in range(layers))

    @property
    def mass(self) -> list[list[list[float]]]:
        """Attention of scale i's queries to scale j ≤ i, (layers, scales, i + 1); rows sum to 1."""
        layers, scales = self.layout.layers, len(self.layout.scales)
        return [[(self._mass[layer, i] / self.rows).tolist() for i in range(scales)] for layer in range(layers)]
