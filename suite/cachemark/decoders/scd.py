"""Speculative coupled decoding: the drafts of two passes are coupled, so that they seldom change."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .base.windowed import Windowed
from .registry import decoder
from .sjd import SJD


@decoder("scd")
@dataclass
class SCD(SJD):
    """Speculative Jacobi decoding whose drafts are coupled with those of the pass before: the same law, other images, in fewer passes.

    "Speculative coupled decoding" (ICML 2026, arXiv 2510.24211, first called MC-SJD). Two laws of a place that are near give the
    same draft nearly always, where independent ones of a flat law hardly ever do. ``coupling = "gumbel"``: a place keeps its noise, which
    :class:`~.jacobi.Jacobi` does too, but acceptance stays a coin, so tokens are not the sequential ones. ``"maximal"``: the test of
    :class:`SJD` goes on behind the first draft that fails, and what it leaves or draws anew is the next draft.

    Differs from the authors' code: a draft that maximal coupling keeps has the law p from then on, as their paper says. Their code for
    Lumina and Janus goes on with the law that it had before, which changes the law of the images.
    """

    source = "Speculative coupled decoding, arXiv 2510.24211"

    window: int = 32
    coupling: str = "gumbel"

    def check(self) -> None:
        super().check()
        self.check_choice("coupling", "gumbel", "maximal")

    def draw(self, laws: Tensor, first: int, count: int) -> Tensor:
        return (Windowed if self.coupling == "gumbel" else SJD).draw(self, laws, first, count)

    def next_drafts(self, laws: Tensor, coupled: Tensor, first: int) -> Tensor:
        return coupled if self.coupling == "maximal" else super().next_drafts(laws, coupled, first)
