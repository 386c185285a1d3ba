"""Entries that a next-scale method holds, by arithmetic: between two scales, between two layers of one, and allocated."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..cache.layout import Layout, Site, Step, scale_steps
from ..contract.heads import PerHead
from ..contract.method import Method
from ..methods.base.head_aware import HeadAware


@dataclass(frozen=True)
class Holdings:
    """Entries of one row, all layers and heads together. ``live``: the most that stay between two scales; ``high_water``: the most at one
    moment between two layers of a scale, when some have grown and others not yet shrunk; ``allocated`` for a generation; ``everything``:
    all that later passes can read, which is what shares are of."""

    live: int
    high_water: int
    allocated: int
    everything: int

    @classmethod
    def of(cls, method: Method, layout: Layout) -> Holdings:
        """Raises what :meth:`Method.resolve` raises."""
        method.resolve(layout)
        sites = [Site("decoder", layer) for layer in range(layout.layers)]
        before = [[_before(method, layout, site, step) for site in sites] for step in scale_steps(layout)]
        moments = [sum(after[:done]) + sum(now[done:]) for now, after in pairwise(before)
                   for done in range(layout.layers + 1)]
        allocated = sum(method.entries(layout, site) if isinstance(method, PerHead) else method.capacity(layout, site) * layout.kv_heads
                        for site in sites)
        return cls(max(map(sum, before)), max(moments), allocated, layout.layers * layout.kv_heads * layout.cacheable)


def _before(method: Method, layout: Layout, site: Site, step: Step) -> int:
    """Entries that all heads of a site have from the scales before."""
    if isinstance(method, HeadAware):  # whose queries may see fewer
        return sum(method.kept_before(site, step, contextual=few) for few in method.classes.contextual[site.layer])
    return method.attended_by_heads(layout, site, step) - layout.kv_heads * step.count
