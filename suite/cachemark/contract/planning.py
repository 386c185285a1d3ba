"""The side of a method that a plan sees: its knobs, the budgets that they meet, and facts for cards and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Protocol

from ..cache.layout import Layout
from ..core.errors import BadBudget
from .knobs import Knobs


class Profiler(Protocol):
    """A method that keeps everything and notes what it sees, in all generations that it serves."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts that were measured, as they may stand in JSON."""


@dataclass
class Planning(Knobs):
    """Knobs are the fields of the dataclass.

    Class attributes: ``paradigms`` the method runs on; ``sizes`` are knobs that, given by a plan, stand in place of its budget;
    ``source`` names paper and section; ``unstated`` are the knobs whose default the paper does not state, or states otherwise, each with
    where the default comes from; ``footnotes`` are printed with its figures; ``later`` are knobs that came after figures were stored: at
    their default they stand in no case, so that it is the same case as before; ``neutral`` are the knobs, beside those of the whole
    budget, with which the method is the full cache, None where there are none, as for an ablation; ``reorders``: tokens are predicted in
    another order than the full model's, so that what is drawn along its tokens cannot be compared place by place.
    """

    paradigms: ClassVar[tuple[str, ...]] = ("next-token",)
    sizes: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str] = ""
    unstated: ClassVar[Mapping[str, str]] = {}
    footnotes: ClassVar[tuple[str, ...]] = ()
    later: ClassVar[tuple[str, ...]] = ()
    neutral: ClassVar[Mapping[str, Any] | None] = {}
    reorders: ClassVar[bool] = False

    @classmethod
    def knobs_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Knobs that meet ``budget`` (a share of the full cache) on this layout; raises BadBudget where none do."""
        return {}

    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Knobs that meet ``budget`` together with those of this instance: a plan may give some and leave the rest to the budget."""
        return self.knobs_for(budget, layout)

    def own_budget(self, layout: Layout) -> Fraction:
        """The share of the full cache that these knobs are, for a method whose authors state sizes and no budget."""
        raise BadBudget(f"{self.name} has no budget of its own.", remedy="Give a share of the full cache, such as 1/4.")

    def resolve(self, layout: Layout) -> None:
        """Check the knobs against the layout and fill in those that depend on it; raises BadKnob."""

    def idle_reason(self, layout: Layout) -> str:
        """After :meth:`resolve`: why these knobs leave what the model draws as it is on this layout, or nothing. For what cannot be seen on
        paper, where a method that computes and reads all that the full cache does is found anyway."""
        return ""

    @classmethod
    def profiler(cls) -> Profiler | None:
        """The method under which a few samples are drawn to measure what :meth:`calibrate` takes; None where nothing is measured."""
        return None

    def calibrate(self, measured: Mapping[str, Any]) -> None:
        """Take facts that were measured of the weights for this method (empty where there are none), before :meth:`resolve`. They may
        only serve to fill in knobs: a trial is given the resolved knobs and no facts."""
