"""Speculative coupled decoding: drafts of consecutive passes are coupled, so that they seldom change."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .registry import decoder
from .speculative import DraftWindow, Speculative
from .windowed import Windowed


@decoder("scd")
@dataclass
class SCD(Speculative):
    """Couples the drafts of speculative Jacobi decoding: the same distribution in fewer passes.

    "Speculative coupled decoding" (ICML 2026, arXiv 2510.24211, first called MC-SJD). Coupled draws from two similar distributions nearly
    always agree; independent draws from a flat distribution hardly ever do. ``coupling = "gumbel"`` keeps the noise of a position, as
    :class:`~.jacobi.Jacobi` does, but accepts at random, so tokens differ from the sequential ones. ``"maximal"`` continues the test of
    :class:`~.sjd.SJD` after the first rejected draft; the tokens that it keeps or redraws are the next drafts.

    Differs from the authors' code: a draft that maximal coupling keeps has the distribution p from then on, as in their paper. Their code
    for Lumina and Janus continues with the previous distribution, which changes the distribution of the images.
    """

    title = "SCD"
    source = "Speculative coupled decoding, arXiv 2510.24211"

    window: int = 32
    coupling: str = "gumbel"

    def check(self) -> None:
        super().check()
        self.check_choice("coupling", "gumbel", "maximal")

    def draw(self, logits: Tensor, first: int, count: int) -> Tensor:
        return (Windowed if self.coupling == "gumbel" else Speculative).draw(self, logits, first, count)

    def next_drafts(self, tested: DraftWindow) -> Tensor:
        return tested.coupled if self.coupling == "maximal" else super().next_drafts(tested)
