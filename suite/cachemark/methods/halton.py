"""Halton: positions in the order of a sequence that spreads those of each step evenly over the image."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from ..cache import random_streams as streams
from ..cache.layout import Layout
from ..cache.masked_layout import MaskedLayout
from ..core.errors import BadParameter
from ..roofline.flops_budget import budget_of, fitted
from .base.annealed import HEAD_PARAMETERS, Annealed
from .registry import method


@method("halton")
@dataclass
class Halton(Annealed):
    """Predicts positions in the order of the Halton sequence instead of a random one.

    Besnier et al., "Halton Scheduler for Masked Generative Image Transformer" (arXiv 2503.17076, ICLR 2025), and its published code for
    MaskGIT. The sequence in bases 2 and 3 visits rows and columns; a position that was visited before is left out. Every image has the same
    order. With ``roll`` each image starts at another point of the sequence, keyed by its seed, and goes round.

    ``rate``: tokens per step, by MAR's ``cosine`` schedule or by the authors' ``arccos``, which predicts more tokens in the first steps and
    in the last, for almost the same FLOPs. ``order``: of prediction, ``halton`` or the ``sample``'s own, which leaves the effect of the
    rate alone.

    Nothing is cached: a budget is a fraction of FLOPs. With MAR's rate the method costs as much as ``fewer_steps``, and the noise of a
    position is the same, so that the two compare orders.

    Differs from the code: it is for MaskGIT, with discrete tokens. Order and rate are taken from it; guidance and temperature are MAR's.
    """

    title = "Halton"
    sizes = ("steps",)
    source = "Halton scheduler (arXiv 2503.17076), by its published code"
    authors_code = "yes: valeoai/Halton-MaskGIT, for MaskGIT"
    neutral = {"order": "sample", "rate": "cosine", "roll": False}
    unstated = {
        "steps": "the requested ones",
        "rate": "ours: MAR's own, so that orders are compared at equal steps",
        "roll": "off in the published code",
        **HEAD_PARAMETERS,
    }

    steps: int = 0
    rate: str = "cosine"
    roll: bool = False
    order: str = "halton"

    # -- what a plan asks ---------------------------------------------------------------------------------------------
    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return the most steps within this fraction of an image's FLOPs."""
        shape = cast(MaskedLayout, layout)
        return {"steps": 1 + fitted(self.name, lambda i: replace(self, steps=1 + i), shape.steps - 1, budget, shape)}

    def own_budget(self, layout: Layout) -> Fraction:
        """Return the share of the FLOPs, at most 1, since the authors' rate can exceed MAR's in few steps."""
        return min(Fraction(1), budget_of(self, cast(MaskedLayout, layout)))

    def resolve(self, layout: Layout) -> None:
        super().resolve(layout)
        requested = cast(MaskedLayout, layout).steps
        self.check_choice("rate", "cosine", "arccos")
        self.check_choice("order", "halton", "sample")
        if self.roll and not self.reorders:
            raise BadParameter("halton: roll = True has no effect on the sample's own order.",
                               remedy="Use order = 'halton' or roll = False.")
        self.steps = self.steps or requested
        self.check_range("steps", 1 <= self.steps <= requested, f"Use 1 … {requested}, the requested steps, or a budget such as 1/2.")

    # -- which steps, and in what order -------------------------------------------------------------------------------
    @property
    def reorders(self) -> bool:
        return self.order == "halton"

    def passes(self, requested: int) -> int:
        return self.steps

    def paced(self, layout: MaskedLayout) -> MaskedLayout:
        return replace(layout, steps=self.steps, counts=arccos_counts(layout.visual, self.steps) if self.rate == "arccos" else ())

    def ordered(self, order: Tensor) -> Tensor:
        """Return the sequence for each sample, the tail first; ``order`` is the sample's own."""
        if not self.reorders:
            return order
        sequence = torch.tensor(halton_order(self.layout.lines, self.layout.line), device=order.device)
        turn = torch.arange(len(sequence), device=order.device).expand(order.shape)
        if self.roll:
            seeds = streams.seeds_tensor(self.layout.seeds[: len(order)], order.device)
            own = streams.keys(seeds, "order", 1)  # position 0 belongs to the model's random order
            turn = (turn + streams.below(own, 1, len(sequence))) % len(sequence)
        return sequence[turn].flip(1)


@cache
def halton_order(lines: int, line: int) -> tuple[int, ...]:
    """Return the raster positions of a grid in the order of the Halton sequence's points 1, 2, …."""
    visited, point = dict[int, None](), 0
    while len(visited) < lines * line:
        point += 1
        visited.setdefault(cell_of(point, 2, lines) * line + cell_of(point, 3, line))
    return tuple(visited)


def cell_of(point: int, base: int, cells: int) -> int:
    """Return in which of ``cells`` equal parts of [0, 1) the radical inverse of ``point`` lies, exactly."""
    inverse, power = 0, 1
    while point:
        point, digit = divmod(point, base)
        inverse, power = inverse * base + digit, power * base
    return inverse * cells // power


def arccos_counts(tokens: int, steps: int) -> tuple[int, ...]:
    """Return the tokens of each of T steps by the authors' schedule.

    After step i, floor(N·(1 − arccos(i/T)·2/π)) of N tokens are known, but at least i. Operations are in the order of the authors' code,
    because rounding decides where the exact value is an integer.
    """
    known = [max(step, math.floor(tokens * (1 - math.acos(step / steps) / (math.pi / 2)))) for step in range(steps + 1)]
    return tuple(after - before for before, after in pairwise(known))
