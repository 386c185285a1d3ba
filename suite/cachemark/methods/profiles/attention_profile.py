"""Attention of a next-scale model's heads to its scales, measured for HeatKV, ScaleKV and HACK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...cache.attention import fold
from ...cache.layout import Layout, Site, Step
from ...cache.slot import Slot
from ...contract.method import Method

DECIMALS = 9
STRONGEST = 16  # weights on earlier tokens that count in ASI; ScaleKV's K' is not stated


class AttentionProfile(Method):
    """The full cache, which measures attention weights of every layer, head and scale.

    ``parts`` names the requested facts. One instance serves many generations and averages over conditional rows in fp64. It computes all
    weights of a head in fp32: 172 MB for one row of the last scale at 1024 pixels. Not a method to benchmark.
    """

    def __init__(self, *parts: str) -> None:
        assert parts
        assert set(parts) <= {"scas", "mass", "variance", "asi"}, parts
        self.parts, self.rows = parts, 0

    def begin(self, layout: Layout, sites: Any, memory: Any) -> None:
        super().begin(layout, sites, memory)
        if not self.rows:
            scales = len(layout.scales)
            self._mass = torch.zeros(layout.layers, layout.kv_heads, scales, scales, dtype=torch.float64)
            self._asi = torch.zeros(layout.layers, scales, dtype=torch.float64)
            self._variance = torch.zeros(layout.layers, layout.kv_heads, dtype=torch.float64)
        self._asked = [row for row, branch in enumerate(layout.branches) if not branch]
        self.rows += len(self._asked)

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        staged = slot.live[0] == step.first  # the last scale stays where it was put beside the others
        k, _ = (self.workspace if staged and self.workspace is not None else slot).read(slot.bank.runs[0], slot.live[0])
        sizes = [side**2 for side in self.layout.scales[: step.scale]]
        queries = fold(q, k.size(1))
        for row in self._asked:
            for head in range(k.size(1)):
                weights = (queries[row, head].float() @ k[row, head].float().mT * q.size(-1) ** -0.5).softmax(-1)
                self._note(site.layer, head, step, weights, sizes)

    def _note(self, layer: int, head: int, step: Step, weights: Tensor, sizes: list[int]) -> None:
        """Add the weights (queries, keys) of one row."""
        shares = torch.stack([part.sum(-1).mean() for part in weights.split(sizes, -1)]).double().cpu()
        self._mass[layer, head, step.index, : step.scale] += shares
        if "asi" in self.parts and step.index:
            earlier = weights[:, : step.first]
            strongest = earlier.topk(min(STRONGEST, step.first), -1).values.sum(-1).mean()
            self._asi[layer, step.index] += float(shares[-1]) * float(strongest) / self.layout.kv_heads
        if "variance" in self.parts and step.last:
            self._variance[layer, head] += float(weights.double().var(0, correction=0).sum())

    @property
    def mass(self) -> Tensor:
        """Mean attention, (layers, heads, query scale, source scale) fp64; 0 for later sources."""
        return self._mass / self.rows

    @property
    def scas(self) -> Tensor:
        """S-CAS of HeatKV, (layers, heads, source scale) fp64.

        The attention to a scale, averaged over all later scales. NaN for the last scale.
        """
        mass = self.mass
        later = torch.stack([mass[:, :, source + 1 :, source].sum(-1) for source in range(mass.size(-1))], -1)
        return later / torch.arange(mass.size(-1) - 1, -1, -1, dtype=torch.float64).masked_fill_(
            torch.arange(mass.size(-1)) == mass.size(-1) - 1, torch.nan)

    @property
    def asi(self) -> Tensor:
        """ASI of ScaleKV, (layers, query scale from the second on) fp64.

        The attention to the scale's own tokens times that to the ``STRONGEST`` earlier ones, averaged over rows and heads. Every query
        counts; the paper samples some.
        """
        return self._asi[:, 1:] / self.rows

    @property
    def variance(self) -> Tensor:
        """Variance for HACK, (layers, heads) fp64.

        Variance of each key's weight over the queries of the last scale, summed over keys.
        """
        return self._variance / self.rows

    @property
    def facts(self) -> Mapping[str, Any]:
        """The requested parts as lists, with their shape; S-CAS without the last scale."""
        layout = self.layout
        facts: dict[str, Any] = {"layers": layout.layers, "heads": layout.kv_heads, "scales": list(layout.scales)}
        for part in self.parts:
            values = getattr(self, part)
            facts[part] = rounded((values[..., :-1] if part == "scas" else values).tolist())
        return facts


def rounded(values: Any) -> Any:
    """Round nested lists of numbers to ``DECIMALS``."""
    return [rounded(value) for value in values] if isinstance(values, list) else round(values, DECIMALS)
