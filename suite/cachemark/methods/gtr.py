"""GtR: a sparse half of the positions in many passes, then all others in a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from ..cache.layout import Layout
from ..cache.masked_layout import MaskedLayout, MaskedStep, cosine_counts
from ..contract.method import Bidirectional
from ..contract.planning import Denoising, head_passes
from ..core.errors import BadParameter
from ..roofline.flops_budget import budget_of, fitted
from .registry import method

AUTHORS = 32  # passes of their MAR-H, where the full model makes 64
SLOWER = 4  # times as many passes as the next generation stage has
REBUILT = 16  # one pass in so many belongs to the reconstruction; both give the authors' rates of 2.67, 10.67 and 64 tokens per pass


@method("gtr")
@dataclass
class GtR(Bidirectional):
    """Predicts positions in ``stages``: even diagonals slowly, coarsest first, then all others at once.

    GtR, "Generation then Reconstruction" (arXiv 2510.17171, ICLR 2026), after its abstract and summaries; the announced code is not
    published. *Generation* stages predict positions whose row and column add up to an even number; the *reconstruction* predicts all others
    in a few passes. The head runs the fraction ``most`` of its passes for the first tokens, decreasing to ``least`` in the last generation
    pass and in the reconstruction, where the fraction ``detail`` of tokens with the most high frequencies gets ``most`` again.

    MAR of 16×16 tokens in 32 passes: 64 tokens in 24, 64 in 6, 128 in 2; 50 of 100 passes of the head, down to 20; 10 % of the tokens with
    detail. The frequency content of a token is computed from its condition z, the D numbers that the head receives: Σ |DFT(z)ₙ|·(1 +
    n/(D/2)) over n ≤ D/2, in the conditional row.

    Nothing is cached: a budget is a fraction of FLOPs, as for ``fewer_steps``. The order within a stage and the noise of a position are the
    sample's own. Tokens are predicted in another order than the full model's, so no forced distance is measured.
    """

    title = "GtR"
    sizes = ("steps", "split")
    source = "GtR (arXiv 2510.17171), read from its abstract and from summaries; no code is published"
    authors_code = "README only"
    neutral = {"stages": 1, "rate": "cosine", "most": 1.0, "least": 1.0}
    unstated = {
        "steps": "half of the requested ones, at most 32: the authors make 32 of 64",
        "stages": "3 for MAR; the split of even positions into more than three is ours: the coarsest grid first",
        "split": "ours: a sixteenth of the passes for the reconstruction, and of the others four times as many for each stage as for the "
                 "next, which gives the authors' mean rates at 32",
        "rate": "ours: as many tokens in each pass of a stage; the paper gives means alone",
        "most": "a half: 50 passes of the head, where MAR's own are 100; how a head of another number is cut is not stated",
        "least": "a fifth: 20 passes, likewise",
        "detail": "10 % as stated; that they are counted in each pass, rounded to the nearest, is ours",
    }

    steps: int = 0
    stages: int = 3
    split: Sequence[int] = ()
    rate: str = "even"
    most: float = 0.5
    least: float = 0.2
    detail: float = 0.1

    # -- planning -----------------------------------------------------------------------------------------------------
    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return the most passes within this fraction of an image's FLOPs."""
        shape = cast(MaskedLayout, layout)
        least = self.stages
        return {"steps": least + fitted(self.name, lambda i: replace(self, steps=least + i), max(0, shape.steps - least), budget, shape)}

    def own_budget(self, layout: Layout) -> Fraction:
        return budget_of(self, cast(MaskedLayout, layout))

    def resolve(self, layout: Layout) -> None:
        requested = cast(MaskedLayout, layout).steps
        self._check_parameters(layout)
        self.steps = self.steps or sum(self.split) or max(self.stages, min(AUTHORS, -(-requested // 2)))
        self.check_range("steps", self.stages <= self.steps <= requested, f"Use {self.stages} … {requested} in {self.stages} stages.")
        self._sizes = [int((stage_of(layout, self.stages) == stage).sum()) for stage in range(self.stages)]
        self._passes = self._divided()
        self._counts = [self._rated(size, passes) for size, passes in zip(self._sizes, self._passes, strict=True)]

    def _check_parameters(self, layout: Layout) -> None:
        self.check_choice("rate", "even", "cosine")
        deepest = (layout.lines + layout.line - 2).bit_length() + 1  # the most stages that each have a position
        self.check_range("stages", 1 <= self.stages <= deepest, f"Use 1 … {deepest} for {layout.line}×{layout.lines} positions.")
        self.check_range("most", 0 < self.most <= 1, "Use a number in (0, 1].")
        self.check_range("least", 0 < self.least <= self.most, f"Use a number in (0, {self.most}], the value of most.")
        self.check_range("detail", 0 <= self.detail < 1, "Use a number in [0, 1).")
        valid = not isinstance(self.split, str) and all(type(passes) is int for passes in self.split)
        self.check_range("split", valid, "Use a list with a number of passes for each stage.")

    def _divided(self) -> Sequence[int]:
        """Return the passes of each stage."""
        if not self.split:
            return divided(self.steps, self._sizes)
        if len(self.split) != self.stages or sum(self.split) != self.steps:
            raise BadParameter(f"gtr: split = {_described(self.split)} is a schedule of {sum(self.split)} steps in {len(self.split)} "
                               f"stages; there are {self.steps} in {self.stages}.", remedy="Use passes for each stage, or none.")
        if any(not 1 <= passes <= size for passes, size in zip(self.split, self._sizes, strict=True)):
            raise BadParameter(f"gtr: split = {_described(self.split)} for stages of {_described(self._sizes)} tokens.",
                               remedy="Use each stage one pass or more, and no more than it has tokens.")
        return self.split

    def _rated(self, tokens: int, passes: int) -> Sequence[int]:
        """Return the tokens of each pass of a stage."""
        if self.rate == "cosine":
            return cosine_counts(tokens, passes)
        bounds = [tokens * index // passes for index in range(passes + 1)]
        return [after - before for before, after in pairwise(bounds)]

    # -- passes and order ---------------------------------------------------------------------------------------------
    @property
    def reorders(self) -> bool:
        return self.stages > 1

    def passes(self, requested: int) -> int:
        return self.steps

    def paced(self, layout: MaskedLayout) -> MaskedLayout:
        return replace(layout, steps=self.steps, counts=tuple(count for counts in self._counts for count in counts))

    def ordered(self, order: Tensor) -> Tensor:
        """Return the sample's own order, stage by stage; the tail is predicted first."""
        stage = stage_of(self.layout, self.stages).to(order.device)[order]
        return order.gather(1, stage.argsort(dim=1, descending=True, stable=True))

    # -- how the head draws -------------------------------------------------------------------------------------------
    def denoising(self, step: MaskedStep, requested: int) -> Sequence[Denoising]:
        generating = sum(self._passes[: max(1, self.stages - 1)])
        most, least = (head_passes(requested, share) for share in (self.most, self.least))
        if step.index < generating:
            return (Denoising(step.count, most - (most - least) * step.index // max(1, generating - 1)),)
        fine = round(self.detail * step.count)
        if not fine or most == least:
            return (Denoising(step.count, least),)
        return Denoising(fine, most), Denoising(step.count - fine, least)

    def ranked(self, step: MaskedStep, z: Tensor) -> Tensor:
        """Rank tokens by high frequencies, the most first; ties by position."""
        sizes = torch.fft.rfft(z.float()).abs()
        weights = 1 + torch.arange(sizes.size(-1), device=z.device) / (z.size(-1) / 2)
        return (sizes * weights).sum(-1).argsort(dim=1, descending=True, stable=True)


def stage_of(layout: Layout, stages: int) -> Tensor:
    """Return the stage (from 0) of each position, (N,) int64.

    The last stage has the odd diagonals, the one before it those divisible by 2 once, and so on; the first has all others.
    """
    row, column = torch.arange(layout.lines)[:, None], torch.arange(layout.line)
    diagonal = (row + column).flatten()
    halvings = sum(((diagonal % 2**power == 0).long() for power in range(1, stages)), torch.zeros_like(diagonal))
    return stages - 1 - halvings


def divided(steps: int, sizes: Sequence[int]) -> list[int]:
    """Return the passes of stages with so many tokens, at least one each.

    A sixteenth for the last one, and of the others four times as many for each as for the next. Passes beyond a stage's tokens go to the
    next.
    """
    if len(sizes) == 1:
        return [steps]
    stages = [max(1, round(steps / REBUILT))]
    remaining = steps - stages[0]
    for later in range(len(sizes) - 2):  # from the last generation stage back to the second
        weights = sum(SLOWER**power for power in range(len(sizes) - 1 - later))
        stages.insert(0, max(1, round(remaining / weights)))
        remaining -= stages[0]
    stages.insert(0, remaining)
    for stage, size in enumerate(sizes[:-1]):
        over = max(0, stages[stage] - size)
        stages[stage] -= over
        stages[stage + 1] += over
    return stages


def _described(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))
