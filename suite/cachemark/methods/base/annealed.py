"""Diffusion step annealing: later passes of a masked generation give their tokens fewer steps of the diffusion head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from ...cache.layout import Layout
from ...cache.masked_layout import MaskedLayout, MaskedStep
from ...cache.timesteps import STEPS
from ...contract.method import Bidirectional
from ...contract.planning import Denoising, head_passes

LATEST = 950  # timestep that the published code starts at
OFF = "off"
STARTS = ("code", "full")
SCHEDULES: dict[str, Callable[[int, int, int], float]] = {  # steps above the least, of pass s, the last pass e, and the span
    "linear": lambda s, e, span: (e - s) / e * span if e else span,
    "cosine": lambda s, e, span: (math.cos(math.pi * s / e) + 1) / 2 * span if e else span,
    "two-stage": lambda s, e, span: span if s < e / 2 or not e else 0,
    "constant": lambda s, e, span: 0,
}


class HeadSchedule(NamedTuple):
    """Steps of the diffusion head by pass: from ``most`` of the requested steps down to ``least`` of them.

    DiSA (arXiv 2505.20297), by its published code: pass s of T gets least + ⌊x⌋ steps, where x falls from most − least to 0 by the schedule
    ``annealing``; ``constant`` is ``least`` in every pass. ``start = "code"`` replaces every timestep above 950 by 950 and merges equal
    ones, as that code does, where the head's own process starts at the noisiest of its 1000 steps; ``full`` leaves the process as it is.
    """

    annealing: str
    most: float
    least: float
    start: str

    def check(self, method: Bidirectional, prefix: str = "") -> None:
        """Raise BadParameter for values of ``method``'s parameters, whose names have this prefix, that make no schedule."""
        method.check_choice(f"{prefix}annealing", *SCHEDULES, *((OFF,) if prefix else ()))
        method.check_choice(f"{prefix}start", *STARTS)
        method.check_range(f"{prefix}most", 0 < self.most <= 1, "Use a fraction of the head's steps in (0, 1].")
        method.check_range(f"{prefix}least", 0 < self.least <= self.most, f"Use a fraction in (0, {self.most}], so that the steps fall.")

    def timesteps(self, layout: MaskedLayout, index: int, total: int, part: float = 1.0) -> tuple[int, ...]:
        """Return the timesteps, ascending, of pass ``index`` of ``total``, for this ``part`` of its steps."""
        most, least = (head_passes(layout.diffusion, fraction) for fraction in (self.most, self.least))
        steps = least + int(SCHEDULES[self.annealing](index, total - 1, most - least))  # cut, in the code's order of operations
        times = layout.timesteps(head_passes(steps, part))
        return tuple(sorted({min(time, LATEST) for time in times})) if self.start == "code" and times[-1] == STEPS - 1 else times


HEAD_PARAMETERS = {
    "head_annealing": "ours: off, as published; the schedules are DiSA's",
    "head_most": "50 of 100 steps, as in DiSA's published scripts",
    "head_least": "5 of 100 steps, as in DiSA's published scripts",
    "head_start": "of DiSA's published code",
}
"""Parameters of :class:`Annealed` with the origins of their defaults."""


@dataclass(kw_only=True)
class Annealed(Bidirectional):
    """A masked method whose diffusion head may be annealed as well; off by default.

    See :class:`HeadSchedule`.

    Where it is off, the parameters of the schedule are not those of a case, so that they change no key.
    """

    head_annealing: str = OFF
    head_most: float = 0.5
    head_least: float = 0.05
    head_start: str = "code"

    @property
    def head_schedule(self) -> HeadSchedule:
        return HeadSchedule(self.head_annealing, self.head_most, self.head_least, self.head_start)

    def parameters(self) -> dict[str, Any]:
        parameters = super().parameters()
        return parameters if self.head_annealing != OFF else {name: parameters[name] for name in parameters if name not in HEAD_PARAMETERS}

    def resolve(self, layout: Layout) -> None:
        super().resolve(layout)
        self.head_schedule.check(self, "head_")
        self.requested_layout = cast(MaskedLayout, layout)

    def head_part(self, step: MaskedStep) -> float:
        """Return the fraction of the head's steps that a pass runs, without annealing."""
        return 1.0

    def denoising(self, step: MaskedStep, requested: int) -> Sequence[Denoising]:
        if self.head_annealing == OFF:
            return (Denoising(step.count, head_passes(requested, self.head_part(step))),)
        times = self.head_schedule.timesteps(self.requested_layout, step.index, step.total, self.head_part(step))
        return (Denoising(step.count, len(times), times),)
