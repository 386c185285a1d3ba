"""DiSA: fewer steps of the diffusion head the later a token is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

from ..cache.layout import Layout
from ..cache.masked_layout import MaskedLayout, MaskedStep
from ..contract.method import Bidirectional
from ..contract.planning import Denoising
from ..roofline.flops_budget import budget_of, fitted
from .base.annealed import HeadSchedule
from .registry import method


@method("disa")
@dataclass
class DiSA(Bidirectional):
    """Anneals the steps of the diffusion head from ``most`` of the requested ones in the first pass to ``least`` in the last.

    Zhao et al., "DiSA: Diffusion Step Annealing in Autoregressive Image Generation" (arXiv 2505.20297), by its published code for MAR. The
    transformer is untouched and nothing is cached; see :class:`~.base.annealed.HeadSchedule` for ``annealing`` and ``start``. The plain
    rival is ``annealing = "constant"``: the same number of steps, ``least``, in every pass.

    ``steps``: passes of the transformer, by default the requested ones. A budget is a fraction of FLOPs and sets them, since the head's
    share of an image is small.

    Differs from the code: a process of one step, which fails there, is not offered.
    """

    title = "DiSA"
    sizes = ("steps",)
    source = "DiSA (arXiv 2505.20297), read from its abstract and its published code"
    authors_code = "yes: Qinyu-Allen-Zhao/DiSA"
    neutral = {"most": 1.0, "least": 1.0, "start": "full"}
    footnotes = ("where the model's own head starts at timestep 999, disa with start = code starts at 950",)
    unstated = {
        "steps": "the requested ones",
        "annealing": "of the published scripts",
        "most": "50 of 100 steps, as in the published scripts; the default of the command line is 25",
        "least": "5 of 100 steps, as in the published scripts",
        "start": "of the published code, which replaces every timestep above 950 by 950; not stated in the abstract",
    }

    steps: int = 0
    annealing: str = "linear"
    most: float = 0.5
    least: float = 0.05
    start: str = "code"

    # -- planning -----------------------------------------------------------------------------------------------------
    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return the most passes within this fraction of an image's FLOPs."""
        shape = cast(MaskedLayout, layout)
        return {"steps": 1 + fitted(self.name, lambda i: replace(self, steps=1 + i), shape.steps - 1, budget, shape)}

    def own_budget(self, layout: Layout) -> Fraction:
        return budget_of(self, cast(MaskedLayout, layout))

    def resolve(self, layout: Layout) -> None:
        self.shape = cast(MaskedLayout, layout)
        self.head_schedule.check(self)
        self.steps = self.steps or self.shape.steps
        self.check_range("steps", 1 <= self.steps <= self.shape.steps, f"Use 1 … {self.shape.steps}, the requested steps, or a budget.")

    def passes(self, requested: int) -> int:
        return self.steps

    # -- how the head draws -------------------------------------------------------------------------------------------
    @property
    def head_schedule(self) -> HeadSchedule:
        return HeadSchedule(self.annealing, self.most, self.least, self.start)

    def denoising(self, step: MaskedStep, requested: int) -> Sequence[Denoising]:
        times = self.head_schedule.timesteps(self.shape, step.index, step.total)
        return (Denoising(step.count, len(times), times),)
