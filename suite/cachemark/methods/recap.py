"""ReCAP: partial steps after each full step compute only the tokens that the group predicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Layout, Load, Site, Step, Tokens
from ..cache.masked_layout import MaskedLayout, MaskedStep
from ..roofline.flops_budget import fitted
from .base.annealed import HEAD_PARAMETERS
from .base.partial import DECODER, ENCODER, EncoderCache, Partial
from .registry import method

HALF = -1  # of the steps are full before the first group


@method("recap")
@dataclass
class ReCAP(Partial):
    """Follows a full step with ``partial_steps`` partial ones that compute only the tokens of their group.

    Liu et al., "Plug-and-Play Context Feature Reuse for Efficient Masked Generation" (arXiv 2505.19089, NeurIPS 2025), and its published
    code for MAR. The first ``full_steps`` steps are full. Then come *groups* of a full step and up to ``partial_steps`` partial ones. A
    partial step computes the tokens that its group predicts, and the buffer, in every block of the decoder; the encoder computes the ones
    that are already predicted. They attend to the keys and values that the group's full step stored for all other tokens. The computed
    tokens are known before the generation starts.

    The diffusion head runs ``head_fraction`` of its steps in partial steps. ``cache_buffer``: the buffer is not computed in partial steps
    either. ``order``: within a group the tokens are predicted in ``raster`` order, as in the published code, or in the ``sample``'s own.

    Differs from the code: its last step has the whole guidance scale, here as in MAR (N − 1)/N of the increase. Keys and values of a group
    are written in place, which gives the same result, because each step of the group replaces them.
    """

    title = "ReCAP"
    sizes = ("full_steps",)
    source = "ReCAP (arXiv 2505.19089), read from its abstract, and its published code"
    authors_code = "yes: liebenxj/ReCAP"
    unstated = {
        **HEAD_PARAMETERS,
        "full_steps": "half of the steps, as in the published scripts",
        "partial_steps": "as in all published scripts",
        "head_fraction": "the value that the published code runs; its scripts set 0.4, which the code ignores",
        "cache_buffer": "off in the published scripts; the code's function has it on",
        "order": "of the published code",
    }

    full_steps: int = HALF
    partial_steps: int = 1
    head_fraction: float = 0.5
    cache_buffer: bool = False
    order: str = "raster"

    # -- planning -----------------------------------------------------------------------------------------------------
    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return the number of full steps before the first group for this fraction of the FLOPs."""
        shape, size = cast(MaskedLayout, layout), 1 + max(0, self.partial_steps)
        groups = shape.steps // size

        def full_steps(without: int) -> int:
            return shape.steps - size * (groups - without)

        return {"full_steps": full_steps(fitted(self.name, lambda i: replace(self, full_steps=full_steps(i)), groups, budget, shape))}

    def check(self) -> None:
        total = len(self.steps)
        if self.full_steps == HALF:
            self.full_steps = total // 2
        self.check_range("full_steps", 0 <= self.full_steps <= total, f"Use 0 … {total}, or {HALF} for half of the steps.")
        self.check_range("partial_steps", self.partial_steps >= 0, "Use 0 or more partial steps per group.")
        self.check_range("head_fraction", 0 < self.head_fraction <= 1, "Use a number in (0, 1].")
        self.check_choice("order", "raster", "sample")

    @property
    def reorders(self) -> bool:
        return self.order == "raster"

    def idle_reason(self, layout: Layout) -> str:
        return "Every step is full: no group has a partial step." if all(self.full) else super().idle_reason(layout)

    # -- full steps and computed tokens -------------------------------------------------------------------------------
    def refreshes(self, step: MaskedStep) -> bool:
        return self._opened(step.index) == step.index

    def keep(self, step: MaskedStep) -> int:
        first, end = self._group(step.index)
        return self._recomputed + end - first

    @property
    def _recomputed(self) -> int:
        """Tokens of the buffer that a partial step computes."""
        return 0 if self.cache_buffer else self.shape.buffer

    def _opened(self, index: int) -> int:
        """Return the full step that opens the group of a step."""
        return index - max(0, index - self.full_steps) % (1 + self.partial_steps)

    def _group(self, index: int) -> tuple[int, int]:
        """Return how many tokens are predicted before the group of a step, and how many after it."""
        opened = self._opened(index)
        size = 1 + self.partial_steps if opened >= self.full_steps else 1
        last = self.steps[min(opened + size, len(self.steps)) - 1]
        return self.steps[opened].first, last.first + last.count

    def ordered(self, order: Tensor) -> Tensor:
        """Return the sample's order, each group sorted by raster position; the tail is predicted first."""
        if self.order == "raster":
            groups = [self._group(index) for index, full in enumerate(self.full) if full]
            parts = order.split([end - first for first, end in reversed(groups)], 1)
            order = torch.cat([part.sort(1, descending=True).values for part in parts], 1)
        self.sequence.copy_(order.repeat(len(self.sequence) // len(order), 1))
        return order

    def _predicted(self, first: int, end: int) -> Tensor:
        """Return ascending raster positions (rows, n) of the tokens ``first`` … ``end`` − 1 of the order."""
        tokens = self.shape.visual
        return self.sequence[:, tokens - end : tokens - first].sort(1).values

    def _drawn(self, step: MaskedStep) -> Tensor:
        """Return the positions of the group's tokens that are already predicted, (rows, n) ascending."""
        return self._predicted(self._group(step.index)[0], step.first)

    def head_part(self, step: MaskedStep) -> float:
        return 1.0 if self.full[step.index] else self.head_fraction

    # -- one generation -----------------------------------------------------------------------------------------------
    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        super().begin(layout, sites, memory)
        self.sequence = memory.zeros("order", (layout.rows, layout.visual), torch.int64)
        if not all(self.full):
            self.encoder = EncoderCache(self.shape, self.rows, memory, self._drawn, self._recomputed)

    def graph_key(self, step: Step) -> None:
        """Return None: the head's number of steps is in its :class:`~cachemark.contract.planning.Denoising`."""

    def stack(self, name: str, step: Step, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        if name == DECODER and self.narrows(step) and self.encoder:
            group = self._predicted(*self._group(step.index))
            self.chosen = torch.cat((self.encoder.first, self.image(group, self.rows)), 1)
        return super().stack(name, step, tokens, run)

    # -- on paper -----------------------------------------------------------------------------------------------------
    def computes(self, site: Site, step: MaskedStep, load: Load) -> Load:
        if site.stack != ENCODER or self.full[step.index]:
            return super().computes(site, step, load)
        computed = self._recomputed + step.first - self._group(step.index)[0]
        return load._replace(tokens=computed, mlp=computed)
