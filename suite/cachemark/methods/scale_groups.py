"""Scale groups: the full cache without one of AMS-KV's three groups of scales."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ..cache.attention import attention
from ..cache.layout import Layout, Step
from ..cache.slot import Slot, Workspace
from ..contract.method import Method
from ..core.errors import BadBudget
from .registry import method


@method("scale_groups")
@dataclass
class ScaleGroups(Method):
    """Hides one group of earlier scales while a scale is generated, to measure its importance.

    The ablation of AMS-KV (arXiv 2511.16047), Table 1. ``remove`` names the group: the first ``condensed`` scales, the ``local`` most
    recent ones, or the ``intermediate`` ones between them; a scale that is both first and recent is condensed. It saves nothing, since a
    local scale is intermediate later. The paper does not state how many scales are local; its larger budget fits two.
    """

    title = "scale groups"
    paradigms = ("next-scale",)
    source = "AMS-KV (arXiv 2511.16047), Table 1"
    neutral = None  # it always hides a group
    kernel = "sdpa-masked"  # differs from the full cache's kernel, so no speedup is reported
    unstated = {"local": "ours: the number that fits the larger budget of AMS-KV; the paper does not state it"}

    remove: str = "intermediate"
    condensed: int = 2
    local: int = 2

    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        if budget < 1:
            raise BadBudget(f"scale_groups: it hides entries and frees none: no budget of {budget}.", remedy="Its budget is 1.")
        return {}

    def resolve(self, layout: Layout) -> None:
        self.check_choice("remove", "condensed", "intermediate", "local")
        for parameter in ("condensed", "local"):
            self.check_range(parameter, getattr(self, parameter) >= 0, "Use 0 or more scales.")

    def attend_scale(self, step: Step, q: Tensor, slot: Slot, workspace: Workspace | None) -> tuple[Tensor, Tensor | None]:
        sizes = self.layout.scale_tokens[: step.scale]
        visible = torch.cat([torch.full((size,), self.group(scale, step.index) != self.remove, device=q.device)
                             for scale, size in enumerate(sizes)])
        return attention(q, slot, workspace, visible=visible.expand(q.size(2), -1))

    def group(self, scale: int, now: int) -> str:
        """Return the group of a scale while scale ``now`` is generated, both from 0; "own" for itself."""
        if scale == now:
            return "own"
        if scale < self.condensed:
            return "condensed"
        return "local" if scale >= now - self.local else "intermediate"
