"""AMS-KV: condensed and local scales, and more of them in the layers whose scales are least alike."""

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
from .profiles.inter_scale import ScaleProfile, inter_scale
from .registry import method

MEASURE = "Give demanding = [layers], or measure it: cachemark calibrate ams_kv MODEL."


class ThresholdWarning(UserWarning):
    """A threshold that tells no layers apart."""


@method("ams_kv")
@dataclass
class AMSKV(Method):
    """Each layer keeps the first ``condensed`` scales and, up to its budget, the most recent tokens. The budget is ``c_min``
    tokens; in *demanding* layers, whose keys change much from scale to scale (S < ``theta``), it is ``c_max``.

    "AMS-KV: Adaptive KV Caching for Multi-Scale Visual Autoregressive Transformers" (arXiv 2511.16047), Algorithms 1 and 2.
    0 stands for the paper's defaults: ``c_max`` holds the condensed and the last two scales, ``c_min`` the condensed and the
    last but one. ``entries`` > 0 instead fits ``c_min`` (``c_max`` only where nothing else helps) to that many entries over all
    layers. The mean square in S is ours: Eq. 3 prints a norm, and the paper does not say how it is normalised; see
    :func:`~cachemark.methods.profiles.inter_scale.inter_scale`.

    Differs from the paper: with ``decide = "profile"`` the demanding layers are known beforehand, from S measured once for these
    weights or from the list ``demanding``, and have ``c_max`` from their first overflow on; nothing is decided while an image is
    made, and a sample does not depend on its batch. ``decide = "online"`` is the paper's rule, decided by the mean over the batch,
    for the eager engine only. ``allocation = "uniform"`` spreads as many demanding layers evenly over the depth (Table 2).
    """

    paradigms = ("next-scale",)
    evicts = True
    source = "AMS-KV (arXiv 2511.16047), Algorithms 1 and 2"

    unstated = {
        "theta": "the best of the four values of Appendix E; which one the main tables used, and how S is normalised, is not said",
        "decide": "ours: Algorithm 1 decides while the images are made, as `online` does",
        "demanding": "ours: which layers were demanding is not listed; the experiment of Table 2 has one in six",
        "entries": "ours: what a budget becomes",
    }

    condensed: int = 2
    c_max: int = 0
    c_min: int = 0
    theta: float = -0.008
    decide: str = "profile"
    allocation: str = "similarity"
    demanding: Sequence[int] | None = None
    entries: int = 0

    # -- what a plan asks ---------------------------------------------------------------------------------------------
    @classmethod
    def parameters_for(cls, budget: Fraction, layout: Layout) -> dict[str, Any]:
        return {"entries": int(budget * layout.layers * layout.cacheable)}

    def own_budget(self, layout: Layout) -> Fraction:
        self.resolve(layout)
        return Fraction(sum(self._room(layout, layer) for layer in range(layout.layers)), layout.layers * layout.cacheable)

    @property
    def footnotes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The rule that decides by the batch, where it is chosen."""
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

    def calibrate(self, measured: Mapping[str, Any]) -> None:
        """``similarity``: S of every layer at scale 2, 3, …, as ``cachemark calibrate`` measures it."""
        self.similarity = measured.get("similarity", ())

    def resolve(self, layout: Layout) -> None:
        self._check(layout)
        sizes = [side**2 for side in layout.scales]
        self.anchor = sum(sizes[: self.condensed])
        self.c_max = self.c_max or self.anchor + sizes[-2] + sizes[-1]
        c_min = self.c_min or self.anchor + sizes[-2]
        if self.decide == "profile" and (self.demanding is None or self.allocation == "uniform"):
            self.demanding = self._profiled(layout, c_min)
        self.demanding = sorted(self.demanding or ())
        self.c_min = self.c_min or (self._fitted(layout) if self.entries else c_min)
        if self.c_min <= self.anchor:
            raise BadBudget(f"ams_kv: c_min = {self.c_min} leaves no room beside the {self.anchor} tokens of the condensed scales.",
                            remedy=f"Give c_min > {self.anchor}, or fewer condensed scales.")
        if self.c_max < self.c_min:
            raise BadParameter(f"ams_kv: c_max = {self.c_max} is less than c_min = {self.c_min}.", remedy="Raise c_max or lower c_min.")

    def _check(self, layout: Layout) -> None:
        self.check_choice("decide", "profile", "online")
        self.check_choice("allocation", "similarity", "uniform")
        if not 0 <= self.condensed < len(layout.scales):
            raise BadParameter(f"ams_kv: condensed = {self.condensed} of {len(layout.scales)} scales.",
                               remedy=f"Give 0 … {len(layout.scales) - 1}.")
        listed = () if self.demanding is None else self.demanding
        if isinstance(listed, str) or not all(type(layer) is int and 0 <= layer < layout.layers for layer in listed):
            raise BadParameter(f"ams_kv: demanding = {listed!r} is not a list of layers.",
                               remedy=f"Give layers in 0 … {layout.layers - 1}.")
        if self.c_max < 0 or self.c_min < 0 or self.entries < 0:
            raise BadParameter("ams_kv: c_max, c_min and entries are numbers of tokens.", remedy="0 stands for the default.")

    def _profiled(self, layout: Layout, c_min: int) -> list[int]:
        """The layers that the rule finds demanding, from the measured similarity (or a given list that is only to be spread)."""
        if self.demanding is None:
            if not self.similarity:
                raise BadParameter("ams_kv: nobody has measured the inter-scale similarity of these weights.", remedy=MEASURE)
            measured = [len(s) for s in self.similarity]
            if measured != [len(layout.scales) - 1] * layout.layers:
                raise BadCalibration(f"ams_kv: the similarity is of another model or resolution: {len(measured)} layers at "
                                     f"{max(measured) + 1} scales, not {layout.layers} at {len(layout.scales)}.", remedy=MEASURE)
            demanding = [layer for layer, s in enumerate(self.similarity) if self._overflows(layout, s, c_min)]
            self._warn(demanding, layout.layers)
        else:
            demanding = list(self.demanding)
        if self.allocation == "uniform":
            return [(2 * i + 1) * layout.layers // (2 * len(demanding)) for i in range(len(demanding))]
        return demanding

    def _overflows(self, layout: Layout, similarity: Sequence[float], c_min: int) -> bool:
        """Return whether Algorithm 1 raises this layer's budget before the last scale, after which nobody reads."""
        live = 0
        for scale, side in enumerate(layout.scales[:-1]):
            own = side**2
            if own <= self.c_max:
                if scale and live + own > c_min and similarity[scale - 1] < self.theta:
                    return True
                live = kept(live, own, c_min)
        return False

    def _warn(self, demanding: list[int], layers: int) -> None:
        if 0 < len(demanding) < layers:
            return
        values = [s for layer in self.similarity for s in layer[:-1]]
        warnings.warn(f"ams_kv: theta = {self.theta} makes {'every' if demanding else 'no'} layer demanding; S was measured from "
                      f"{min(values):.4f} to {max(values):.4f}.", ThresholdWarning, stacklevel=2)

    def _fitted(self, layout: Layout) -> int:
        """``c_min`` such that all layers together hold at most ``entries``; lowers ``c_max`` where that alone cannot do."""
        assert self.demanding is not None
        most, less = len(self.demanding), layout.layers - len(self.demanding)
        remaining = self.entries - most * min(self.c_max, layout.cacheable)
        if less and remaining > less * self.anchor:
            return min(remaining // less, self.c_max)
        if most and (for_demanding := self.entries - less * (self.anchor + 1)) > most * self.anchor:
            self.c_max = min(self.c_max, for_demanding // most)
            return min(self.anchor + 1, self.c_max) if less else self.c_max
        raise BadBudget(f"ams_kv: {self.entries} entries over {layout.layers} layers leave no room beside the condensed scales.",
                        remedy=f"They need more than {self.anchor} in every layer.")

    def _room(self, layout: Layout, layer: int) -> int:
        assert self.demanding is not None
        larger = self.decide == "online" or layer in self.demanding
        return min(self.c_max if larger else self.c_min, layout.cacheable)

    def attended(self, layout: Layout, site: Site, step: Step) -> int:
        """Algorithms 1 and 2 on sizes alone; ``online``, what is decided is not known and the larger budget is taken."""
        budget, live = self._room(layout, site.layer), 0
        for side in layout.scales[: step.index]:
            live = kept(live, side**2, budget)
        return live + step.count

    # -- one generation -----------------------------------------------------------------------------------------------
    def capacity(self, layout: Layout, site: Site) -> int:
        return self._room(layout, site.layer)

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        self.before: dict[Site, Tensor] = {}
        super().begin(layout, sites, memory)
        self.budget = {site: self.c_min if self.decide == "online" else self._room(layout, site.layer) for site in sites}

    def prepare(self, slots: SlotBank, memory: Memory) -> None:
        """Online, all keys of the scale before: the cache itself may have cut or dropped them."""
        if self.decide == "online":
            layout, most = slots.layout, max(side**2 for side in slots.layout.scales[:-1])
            for site in slots.sites:
                shape = (layout.rows, layout.kv_heads, most, layout.head_dim)
                self.before[site] = memory.zeros(f"before.{site}", shape, layout.dtype)

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.decide == "online" and not step.last:
            self._decide(site, step, k)
        return super().attend(site, step, q, k, v)

    def _decide(self, site: Site, step: Step, k: Tensor) -> None:
        """Algorithm 1, lines 5 to 12. It looks at the scale's keys alone, so it may run before they are attended to."""
        live = self.slots[site].live[0]
        overflows = step.count <= self.c_max and live + step.count > self.budget[site]
        if overflows and self.budget[site] == self.c_min and step.index:
            before = self.before[site][:, :, : self.layout.scales[step.index - 1] ** 2]
            if float(inter_scale(k, before)) < self.theta:
                self.budget[site] = self.c_max
        self.before[site][:, :, : step.count] = k

    def room(self, site: Site) -> int:
        return self.budget[site]

    def survivors(self, site: Site, step: Step, slot: Slot, total: int) -> list[range]:
        """Algorithms 1 and 2: a scale larger than the budget is dropped; else the condensed tokens and the latest ones stay."""
        budget = self.budget[site]
        if step.count > budget:
            return [range(slot.live[0])]
        return [range(self.anchor), range(total - (budget - self.anchor), total)]


def kept(before: int, own: int, budget: int) -> int:
    """Tokens that a layer holds after a scale of ``own`` ones: a scale larger than the budget is dropped, else the budget is filled."""
    return before if own > budget else min(before + own, budget)
