"""The side of a method that a plan sees: its knobs, the budgets that they meet, and facts for cards and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, Self

from ..cache.layout import Layout
from ..core.errors import BadBudget, BadKnob, unknown


@dataclass
class Planning:
    """Knobs are the fields of the dataclass.

    Class attributes: ``paradigms`` the method runs on; ``sizes`` are knobs that, given by a plan, stand in place of its budget;
    ``source`` names paper and section; ``unstated`` are the knobs whose default the paper does not state, or states otherwise, each with
    where the default comes from; ``footnotes`` are printed with its figures.
    """

    name: ClassVar[str] = ""
    paradigms: ClassVar[tuple[str, ...]] = ("next-token",)
    sizes: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str] = ""
    unstated: ClassVar[Mapping[str, str]] = {}
    footnotes: ClassVar[tuple[str, ...]] = ()

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

    def check_choice(self, knob: str, *known: str) -> None:
        """Raise BadKnob where the knob has none of the ``known`` values."""
        if (value := getattr(self, knob)) not in known:
            raise BadKnob(f"{self.name}: {knob} = {value!r} is unknown.", remedy=f"Known: {', '.join(known)}.")

    def calibrate(self, measured: Mapping[str, Any]) -> None:
        """Take facts that were measured of the weights for this method (empty where there are none), before :meth:`resolve`. They may
        only serve to fill in knobs: a trial is given the resolved knobs and no facts."""

    @classmethod
    def build(cls, knobs: Mapping[str, Any]) -> Self:
        """An instance with these knobs; an unknown knob or a value of another type is an error that names the nearest."""
        types = {f.name: type(f.default) if f.default is not None else None for f in fields(cls)}
        for knob, value in knobs.items():
            if knob not in types:
                raise unknown(f"knob of {cls.name}", knob, types)
            expected = types[knob]
            wrong = expected is not None and (type(value) is not expected and not (expected is float and type(value) is int))
            if wrong and expected in (int, float, bool, str):
                kind = expected.__name__
                raise BadKnob(f"{cls.name}: {knob} = {value!r} is not {'an' if expected is int else 'a'} {kind}.",
                              remedy=f"Its default is of type {kind}.")
        return cls(**knobs)

    def knobs(self) -> dict[str, Any]:
        """Every knob with its value."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
