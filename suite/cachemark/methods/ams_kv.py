"""AMS-KV: condensed and local scales, with larger budgets in layers whose scales are least similar."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torch import Tensor

from ..cache.arena import Memory
from ..cache.bank import SlotBank
from ..cache.layout import Layout, Site, Step
from ..cache.slot import Slot
from ..contract.method import Method
from ..core.errors import BadBudget, BadCalibration, BadParameter
from .base.profiles import ScaleProfile, inter_scale, stated_scales
from .registry import method

MEASURE = "Use demanding = [layers], or measure it: cachemark calibrate ams_kv MODEL."


class ThresholdWarning(UserWarning):
    """A threshold that does not separate the layers."""


@method("ams_kv")
@dataclass
class AMSKV(Method):
    """Keeps the first ``condensed`` scales and the most recent tokens, up to a budget per layer.

    "AMS-KV: Adaptive KV Caching for Multi-Scale Visual Autoregressive Transformers" (arXiv 2511.16047), Algorithms 1 and 2. The budget is
    ``c_min`` tokens; in *demanding* layers, whose keys change much from scale to scale (S < ``theta``), it is ``c_max``. 0 selects the
    paper's defaults: ``c_max`` fits the condensed and the last two scales, ``c_min`` the condensed and the last but one. ``entries`` > 0
    instead fits ``c_min`` (``c_max`` only if needed) to that many entries over all layers. The mean square in S is ours, see
    :func:`~cachemark.methods.base.profiles.inter_scale`.

    Differs from the paper: with ``decide = "profile"`` the demanding layers come from S measured once for these weights, or from the list
    ``demanding``, and have ``c_max`` from their first overflow on; a sample does not depend on its batch. ``decide = "online"`` is the
    paper's rule, decided by the mean over the batch, for the eager engine only. ``allocation = "uniform"`` spreads as many demanding layers
    evenly over the depth (Table 2).
    """

    title = "AMS-KV"
    paradigms = ("next-scale",)
    evicts = True
    source = "AMS-KV (arXiv 2511.16047), Algorithms 1 and 2"
    authors_code = "none"

    unstated = {
        "theta": "the best of the four values of Appendix E; neither the value of the main tables nor the normalization of S is stated",
        "decide": "ours: Algorithm 1 decides while the images are made, as `online` does",
        "demanding": "ours: which layers were demanding is not listed; the experiment of Table 2 has one in six",
        "entries": "ours: set by the budget",
    }

    condensed: int = 2
    c_max: int = 0
    c_min: int = 0
    theta: float = -0.008
    decide: str = "profile"
    allocation: str = "similarity"
    demanding: Sequence[int] | None = None
    entries: int = 0

    # -- planning -----------------------------------------------------------------------------------------------------
    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        return {"entries": int(budget * layout.layers * layout.cacheable)}

    def own_budget(self, layout: Layout) -> Fraction:
        self.resolve(layout)
        return Fraction(sum(self._room(layout, layer) for layer in range(layout.layers)), layout.layers * layout.cacheable)

    @property
    def footnotes(self) -> tuple[str, ...]:  # type: ignore[override]
        online = "decide = online: the mean over the batch decides while the images are made, so a sample depends on its batch; eager only"
        return (online,) if self.decide == "online" else ()

    @property
    def capturable(self) -> bool:
        return self.decide == "profile"

    @classmethod
    def profiler(cls) -> ScaleProfile:
        return ScaleProfile()

    def __post_init__(self) -> None:
        self.similarity: Sequence[Sequence[float]] = ()
        self._measured_scales: Sequence[object] = ()

    def calibrate(self, measured: Mapping[str, Any]) -> None:
        """Take ``similarity``, S of every layer at scale 2, 3, …, from a calibration."""
        self.similarity, self._measured_scales = measured.get("similarity", ()), measured.get("scales", ())

    def resolve(self, layout: Layout) -> None:
        self._check_parameters(layout)
        sizes = layout.scale_tokens
        self.anchor = sum(sizes[: self.condensed])
        self.c_max = self.c_max or self.anchor + sizes[-2] + sizes[-1]
        c_min = self.c_min or self.anchor + sizes[-2]
        if self.decide == "profile" and (self.demanding is None or self.allocation == "uniform"):
            self.demanding = self._profiled(layout, c_min)
        self.demanding = sorted(self.demanding or ())
        self.c_min = self.c_min or (self._fitted(layout) if self.entries else c_min)
        if self.c_min <= self.anchor:
            raise BadBudget(f"ams_kv: c_min = {self.c_min} does not exceed the {self.anchor} tokens of the condensed scales.",
                            remedy=f"Use c_min > {self.anchor}, or fewer condensed scales.")
        if self.c_max < self.c_min:
            raise BadParameter(f"ams_kv: c_max = {self.c_max} is less than c_min = {self.c_min}.", remedy="Raise c_max or lower c_min.")

    def _check_parameters(self, layout: Layout) -> None:
        self.check_choice("decide", "profile", "online")
        self.check_choice("allocation", "similarity", "uniform")
        self.check_range("condensed", 0 <= self.condensed < len(layout.scales), f"Use 0 … {len(layout.scales) - 1} scales.")
        layers = () if self.demanding is None else self.demanding
        valid = not isinstance(layers, str) and all(type(layer) is int and 0 <= layer < layout.layers for layer in layers)
        self.check_range("demanding", valid, f"Use a list of layers in 0 … {layout.layers - 1}.")
        for parameter in ("c_max", "c_min", "entries"):
            self.check_range(parameter, getattr(self, parameter) >= 0, "Use a number of tokens, 0 for the default.")

    def _profiled(self, layout: Layout, c_min: int) -> list[int]:
        """Return the demanding layers by the measured similarity, or spread as many evenly."""
        demanding = self._measured(layout, c_min) if self.demanding is None else list(self.demanding)
        if self.allocation == "uniform":
            return [(2 * i + 1) * layout.layers // (2 * len(demanding)) for i in range(len(demanding))]
        return demanding

    def _measured(self, layout: Layout, c_min: int) -> list[int]:
        """Return the layers whose budget Algorithm 1 raises before the last scale."""
        if not self.similarity:
            raise BadParameter("ams_kv: no inter-scale similarity found for these weights.", remedy=MEASURE)
        scales = [len(s) + 1 for s in self.similarity]
        if scales != [len(layout.scales)] * layout.layers or (self._measured_scales and self._measured_scales != stated_scales(layout)):
            raise BadCalibration(f"ams_kv: the similarity is of another model or resolution: {len(scales)} layers at "
                                 f"{max(scales)} scales, not {layout.layers} at {len(layout.scales)}.", remedy=MEASURE)

        def overflows(similarity: Sequence[float]) -> bool:
            live = 0
            for scale, own in enumerate(layout.scale_tokens[:-1]):
                if own <= self.c_max:
                    if scale and live + own > c_min and similarity[scale - 1] < self.theta:
                        return True
                    live = retained(live, own, c_min)
            return False

        demanding = [layer for layer, similarity in enumerate(self.similarity) if overflows(similarity)]
        if len(demanding) in (0, layout.layers):
            values = [s for layer in self.similarity for s in layer[:-1]]
            warnings.warn(f"ams_kv: theta = {self.theta} makes {'every' if demanding else 'no'} layer demanding; S was measured from "
                          f"{min(values):.4f} to {max(values):.4f}.", ThresholdWarning, stacklevel=2)
        return demanding

    def _fitted(self, layout: Layout) -> int:
        """Return ``c_min`` for at most ``entries`` in all layers; lower ``c_max`` if that is not enough."""
        assert self.demanding is not None
        most, less = len(self.demanding), layout.layers - len(self.demanding)
        remaining = self.entries - most * min(self.c_max, layout.cacheable)
        if less and remaining > less * self.anchor:
            return min(remaining // less, self.c_max)
        if most and (for_demanding := self.entries - less * (self.anchor + 1)) > most * self.anchor:
            self.c_max = min(self.c_max, for_demanding // most)
            return min(self.anchor + 1, self.c_max) if less else self.c_max
        raise BadBudget(f"ams_kv: {self.entries} entries over {layout.layers} layers do not exceed the condensed scales.",
                        remedy=f"They need more than {self.anchor} in every layer.")

    def _room(self, layout: Layout, layer: int) -> int:
        assert self.demanding is not None
        larger = self.decide == "online" or layer in self.demanding
        return min(self.c_max if larger else self.c_min, layout.cacheable)

    def attended(self, layout: Layout, site: Site, step: Step) -> int:
        """Apply Algorithms 1 and 2 to sizes; ``online`` assumes the larger budget."""
        budget, live = self._room(layout, site.layer), 0
        for own in layout.scale_tokens[: step.index]:
            live = retained(live, own, budget)
        return live + step.count

    # -- one generation -----------------------------------------------------------------------------------------------
    def capacity(self, layout: Layout, site: Site) -> int:
        return self._room(layout, site.layer)

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        self.before: dict[Site, Tensor] = {}
        super().begin(layout, sites, memory)
        self.budget = {site: self.c_min if self.decide == "online" else self._room(layout, site.layer) for site in sites}

    def prepare(self, slots: SlotBank, memory: Memory) -> None:
        """Allocate, for ``online``, all keys of the previous scale, since the cache may have dropped some."""
        if self.decide == "online":
            layout = slots.layout
            shape = (layout.rows, layout.kv_heads, max(layout.scale_tokens[:-1]), layout.head_dim)
            for site in slots.sites:
                self.before[site] = memory.zeros(f"before.{site}", shape, layout.dtype)

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.decide == "online" and not step.last:  # lines 5 to 12 of Algorithm 1, which depend on the scale's keys alone
            overflows = step.count <= self.c_max and self.slots[site].live[0] + step.count > self.budget[site]
            if overflows and self.budget[site] == self.c_min and step.index:
                grids, tokens = self.layout.scales[step.index - 1 : step.scale], self.layout.scale_tokens[step.index - 1]
                if float(inter_scale(k, self.before[site][:, :, :tokens], grids)) < self.theta:
                    self.budget[site] = self.c_max
            self.before[site][:, :, : step.count] = k
        return super().attend(site, step, q, k, v)

    def room(self, site: Site) -> int:
        return self.budget[site]

    def survivors(self, site: Site, step: Step, slot: Slot, total: int) -> list[range]:
        """Apply Algorithms 1 and 2: drop a scale above the budget; else keep condensed and latest tokens."""
        budget = self.budget[site]
        if step.count > budget:
            return [range(slot.live[0])]
        return [range(self.anchor), range(total - (budget - self.anchor), total)]


def retained(before: int, own: int, budget: int) -> int:
    """Return the number of tokens in a layer after a scale of ``own`` tokens."""
    return before if own > budget else min(before + own, budget)
