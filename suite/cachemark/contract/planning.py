"""The side of a method that a plan sees before anything runs: its parameters, the budgets that they meet, and its costs on paper."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from ..cache.layout import Layout, Site, Step
from ..core.errors import BadBudget, BadParameter, unknown

if TYPE_CHECKING:
    from ..cache.masked_layout import Load, MaskedLayout, MaskedStep


@dataclass
class Parameters:
    """A thing of a registry by its ``name``, made of parameters."""

    name: ClassVar[str] = ""

    def check_choice(self, parameter: str, *choices: str) -> None:
        """Raise BadParameter where the parameter has none of the ``choices`` values."""
        if (value := getattr(self, parameter)) not in choices:
            raise BadParameter(f"{self.name}: {parameter} = {value!r} is unknown.", remedy=f"Known: {', '.join(choices)}.")

    @classmethod
    def build(cls, parameters: Mapping[str, Any]) -> Self:
        """An instance with these parameters; an unknown parameter or a value of another type is an error that names the nearest."""
        types = {f.name: type(f.default) if f.default is not None else None for f in fields(cls)}
        for parameter, value in parameters.items():
            if parameter not in types:
                raise unknown(f"parameter of {cls.name}", parameter, types)
            expected = types[parameter]
            wrong = expected is not None and (type(value) is not expected and not (expected is float and type(value) is int))
            if wrong and expected in (int, float, bool, str):
                kind = expected.__name__
                raise BadParameter(f"{cls.name}: {parameter} = {value!r} is not {'an' if expected is int else 'a'} {kind}.",
                                   remedy=f"Its default is of type {kind}.")
        return cls(**parameters)

    def parameters(self) -> dict[str, Any]:
        """Every parameter with its value."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


class MethodOverhead(NamedTuple):
    """Work of a method beside the model: multiplications of matrix ``products``, and ``numbers`` of the layout's dtype that it reads
    and writes (entries that it moves, keys that it scores)."""

    products: int = 0
    numbers: int = 0


class Denoising(NamedTuple):
    """Some ``tokens`` of a masked pass, which the diffusion head draws in so many ``passes``."""

    tokens: int
    passes: int


class Profiler(Protocol):
    """A method that keeps everything and notes what it sees, in all generations that it serves."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts that were measured, as they may stand in JSON."""


@dataclass
class Planning(Parameters):
    """Parameters are the fields of the dataclass.

    Class attributes: ``paradigms`` the method runs on; ``sizes`` are parameters that, given by a plan, stand in place of its budget;
    ``source`` names paper and section; ``unstated`` are the parameters whose default the paper does not state, or states otherwise, with
    the origin of each default; ``footnotes`` are printed with its values; ``later`` are parameters that came after values were stored: at
    their default they stand in no case, so that it is the same case as before; ``neutral`` are the parameters, beside those of the whole
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
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Parameters that meet ``budget`` (a share of the full cache) on this layout; raises BadBudget where none do."""
        return {}

    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Parameters that meet ``budget`` together with those of this instance: a plan may give some and leave the rest to the budget."""
        return self.parameters_for(budget, layout)

    def own_budget(self, layout: Layout) -> Fraction:
        """The share of the full cache that these parameters are, for a method whose authors state sizes and no budget."""
        raise BadBudget(f"{self.name} has no budget of its own.", remedy="Give a share of the full cache, such as 1/4.")

    def resolve(self, layout: Layout) -> None:
        """Check the parameters against the layout and fill in those that depend on it; raises BadParameter."""

    def idle_reason(self, layout: Layout) -> str:
        """After :meth:`resolve`: why these parameters leave what the model draws as it is on this layout, or nothing. For what cannot be
        seen on paper, where a method that computes and reads all that the full cache does is found anyway."""
        return ""

    @classmethod
    def profiler(cls) -> Profiler | None:
        """The method under which a few samples are drawn to measure what :meth:`calibrate` takes; None where nothing is measured."""
        return None

    def calibrate(self, measured: Mapping[str, Any]) -> None:
        """Take facts that were measured of the weights for this method (empty where there are none), before :meth:`resolve`. They may
        only serve to fill in parameters: a trial is given the resolved parameters and no facts."""

    # -- FLOPs and bytes of the full cache, or in a masked model of no cache; asked after `resolve` --------------------
    def passes(self, requested: int) -> int:
        """Masked: return the number of steps to run, of the ``requested`` ones."""
        return requested

    def paced(self, layout: MaskedLayout) -> MaskedLayout:
        """Masked: the layout with the passes that are made, and how many tokens each of them predicts."""
        return replace(layout, steps=self.passes(layout.steps))

    def denoising(self, step: MaskedStep, requested: int) -> Sequence[Denoising]:
        """Masked: split the tokens of a step by their number of head steps, of the ``requested`` ones.

        The parts follow the order of :meth:`~.method.Method.ranked`."""
        return (Denoising(step.count, requested),)

    def computes(self, site: Site, step: MaskedStep, load: Load) -> Load:
        """Masked: the part of ``load`` that a block computes in this pass; without a cache it computes all of it."""
        return load

    def attended(self, layout: Layout, site: Site, step: Step) -> int:
        """Next-token, next-scale: entries that a query of this pass looks at, its own among them."""
        return layout.longest_condition + step.first + step.count

    def attended_by_heads(self, layout: Layout, site: Site, step: Step) -> int:
        """Entries that a query of this pass looks at, summed over K/V heads. Methods whose heads keep different numbers define it."""
        return layout.kv_heads * self.attended(layout, site, step)

    def kind(self, layout: Layout, site: Site) -> Hashable:
        """Sites of one capacity and one kind hold and read as many entries in every pass. Methods whose heads differ define it."""
        return None

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Work of this site in a pass beside the model itself, for one row."""
        return MethodOverhead()
