"""Planning side of a method, used before anything runs: parameters, budgets, and costs on paper."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from ..cache.layout import Layout, Load, Site, Step
from ..core.errors import BadBudget, BadParameter, unknown
from ..core.spec import ENTRIES

if TYPE_CHECKING:
    from ..cache.masked_layout import MaskedLayout, MaskedStep


SEEN = "2026-11"
"""When the repositories of papers were last looked for, see ``authors_code``."""


@dataclass
class Parameters:
    """A registered object, identified by its ``name`` and parameters; reports print the ``title`` of its class, not of a base class."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""

    def check_choice(self, parameter: str, *choices: str) -> None:
        """Raise BadParameter unless the parameter has one of the values ``choices``."""
        if (value := getattr(self, parameter)) not in choices:
            raise BadParameter(f"{self.name}: {parameter} = {value!r} is unknown.", remedy=f"Known: {', '.join(choices)}.")

    def check_range(self, parameter: str, holds: bool, remedy: str) -> None:
        """Raise BadParameter unless the value of the parameter ``holds``."""
        if not holds:
            raise BadParameter(f"{self.name}: {parameter} = {getattr(self, parameter)!r} is out of range.", remedy=remedy)

    @classmethod
    def build(cls, parameters: Mapping[str, Any]) -> Self:
        """Return an instance with these parameters; raise UnknownName or BadParameter for unusable ones."""
        types = {f.name: type(f.default) if f.default is not None else None for f in fields(cls)}
        for parameter, value in parameters.items():
            if parameter not in types:
                raise unknown(f"parameter of {cls.name}", parameter, types)
            expected = types[parameter]
            wrong = expected is not None and (type(value) is not expected and not (expected is float and type(value) is int))
            if wrong and expected in (int, float, bool, str):
                kind = expected.__name__
                raise BadParameter(f"{cls.name}: {parameter} = {value!r} is not {'an' if expected is int else 'a'} {kind}.",
                                   remedy=f"Use type {kind}.")
        return cls(**parameters)

    @classmethod
    def parameter_names(cls) -> list[str]:
        """Return the names of all parameters."""
        return [each.name for each in fields(cls)]

    def parameters(self) -> dict[str, Any]:
        """Return all parameters with their values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def largest(least: int, most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number of ``least`` … ``most`` that fits, by bisection; the least always fits."""
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least


class MethodOverhead(NamedTuple):
    """Work of a method in addition to the model.

    ``products``: multiplications of matrix products. ``numbers``: numbers of the layout's dtype read and written (moved entries, scored
    keys).
    """

    products: int = 0
    numbers: int = 0


class Denoising(NamedTuple):
    """A part of a masked pass: its ``tokens``, and the ``passes`` of the diffusion head that draw them.

    ``timesteps`` (ascending, one per pass) give the process; empty for the model's own spacing of so many passes."""

    tokens: int
    passes: int
    timesteps: tuple[int, ...] = ()

    def process(self, layout: MaskedLayout) -> tuple[int, ...]:
        """Return the timesteps, ascending."""
        return self.timesteps or layout.timesteps(self.passes)


LEAST_HEAD_PASSES = 2


def head_passes(requested: int, fraction: float) -> int:
    """Return this fraction of the head's ``requested`` passes, rounded, but no fewer than the head needs."""
    return min(requested, max(LEAST_HEAD_PASSES, round(fraction * requested)))


class Profiler(Protocol):
    """A method that keeps everything and measures facts over all generations that it serves."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """The measured facts, JSON-compatible."""


@dataclass
class Planning(Parameters):
    """Parameters (dataclass fields), budgets and costs of a method.

    Class attributes: ``paradigms`` are the families it supports; ``sizes`` are parameters that replace the budget if a plan sets them;
    ``source`` names paper and section; ``authors_code`` says whether its authors have published code as of :data:`SEEN`: ``yes:
    owner/repository``, ``README only`` or ``none``, with a remark after a colon; ``unstated`` maps each parameter whose default the paper
    does not state to the origin of the default; ``footnotes`` are printed with its values; ``neutral`` are the parameters that, with the
    whole budget, make the method the full cache (None for an ablation). ``budget_kind``: of a next-scale method, whether its budget is a
    fraction of the stored ``ENTRIES`` or of the ``FLOPS``; the budget of a masked method is always of FLOPs.
    """

    paradigms: ClassVar[tuple[str, ...]] = ("next-token",)
    sizes: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str] = ""
    authors_code: ClassVar[str] = ""
    unstated: ClassVar[Mapping[str, str]] = {}
    footnotes: ClassVar[tuple[str, ...]] = ()
    neutral: ClassVar[Mapping[str, Any] | None] = {}
    budget_kind: ClassVar[str] = ENTRIES

    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return the parameters that meet ``budget`` (fraction of the full cache); raise BadBudget if none do."""
        return {}

    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return parameters that meet ``budget`` together with this instance's parameters."""
        return self.parameters_for(budget, layout)

    def own_budget(self, layout: Layout) -> Fraction:
        """Return the fraction of the full cache that these parameters use, for methods without budgets."""
        raise BadBudget(f"{self.name} has no budget of its own.", remedy="Use a fraction of the full cache, such as 1/4.")

    def resolve(self, layout: Layout) -> None:
        """Check the parameters against the layout and fill in the rest; raise BadParameter."""

    def idle_reason(self, layout: Layout) -> str:
        """After :meth:`resolve`, return why these parameters cannot change the output on this layout, or "".

        Only for reasons that :func:`cachemark.roofline.bill.idle_reason` cannot find from the costs.
        """
        return ""

    @classmethod
    def profiler(cls) -> Profiler | None:
        """Return the method that measures what :meth:`calibrate` takes; None if nothing is measured."""
        return None

    def calibrate(self, measured: Mapping[str, Any]) -> None:
        """Take facts measured of the weights (empty if there are none), before :meth:`resolve`.

        They may only fill in parameters: a trial receives resolved parameters and no facts.
        """

    # -- FLOPs and bytes of the full cache, or of a masked model without cache; available after `resolve` -------------
    def passes(self, requested: int) -> int:
        """Masked: return the number of steps to run, of the ``requested`` ones."""
        return requested

    def paced(self, layout: MaskedLayout) -> MaskedLayout:
        """Masked: return the layout with the steps that are run and how many tokens each predicts."""
        return replace(layout, steps=self.passes(layout.steps))

    @property
    def reorders(self) -> bool:
        """Masked: True if the order of prediction differs from the sample's, so tokens cannot be compared."""
        return False

    def denoising(self, step: MaskedStep, requested: int) -> Sequence[Denoising]:
        """Masked: split the tokens of a step by their number of head steps, of the ``requested`` ones.

        Parts are in the order of :meth:`~.method.Method.ranked`.
        """
        return (Denoising(step.count, requested),)

    def scales(self, layout: Layout) -> int:
        """Next-scale: return how many scales are generated, from the coarsest on."""
        return len(layout.scales)

    def computed_rows(self, layout: Layout, scale: int) -> int:
        """Next-scale: return how many rows scale ``scale`` (from 0) computes.

        These are all rows, or the conditional ones, which come first. Rows that are left out do not come back.
        """
        return layout.rows

    def computes(self, site: Site, step: Any, load: Load) -> Load:
        """Masked, next-scale: return the part of ``load`` that a block computes in this step."""
        return load

    def attended(self, layout: Layout, site: Site, step: Step) -> int:
        """Next-token, next-scale: return how many entries a query of this pass attends to, its own included."""
        return layout.longest_condition + step.first + step.count

    def attended_by_heads(self, layout: Layout, site: Site, step: Step) -> int:
        """Return :meth:`attended` summed over K/V heads; override where heads differ."""
        return layout.kv_heads * self.attended(layout, site, step)

    def kind(self, layout: Layout, site: Site) -> Hashable:
        """Return a key that is equal for sites of one capacity that read equally many entries in every pass."""
        return None

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Return the work of a site in a pass in addition to the model, for one row."""
        return MethodOverhead()
