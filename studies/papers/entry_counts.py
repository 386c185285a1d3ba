"""Computed entries of a next-scale method: between scales, between layers of one scale, and allocated."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from cachemark.cache.layout import Layout, Site, Step, scale_steps
from cachemark.contract.heads import PerHead
from cachemark.contract.method import Method
from cachemark.methods.base.head_aware import HeadAware


def kv_bytes(layout: Layout, count: int, widths: tuple[int, int]) -> int:
    """Return the bytes of ``count`` entries in every row and head.

    ``widths``: bytes of one number of K and of V.
    """
    return layout.rows * layout.kv_heads * layout.head_dim * count * sum(widths)


@dataclass(frozen=True)
class EntryCounts:
    """Entries of one row, all layers and heads together.

    ``live``: maximum between two scales. ``peak``: maximum between two layers of a scale, when some layers have grown and others not yet
    shrunk. ``allocated``: for a generation. ``full``: all entries that later passes can read, the basis of every fraction."""

    live: int
    peak: int
    allocated: int
    full: int


def entry_counts(method: Method, layout: Layout) -> EntryCounts:
    """Count the entries of a method on a next-scale layout. Raises the errors of :meth:`Method.resolve`."""
    method.resolve(layout)
    sites = [Site("decoder", layer) for layer in range(layout.layers)]
    by_scale = [[_live_before(method, layout, site, step) for site in sites] for step in scale_steps(layout)]
    moments = [sum(after[:done]) + sum(before[done:]) for before, after in pairwise(by_scale) for done in range(layout.layers + 1)]
    allocated = sum(method.entries(layout, site) if isinstance(method, PerHead) else method.capacity(layout, site) * layout.kv_heads
                    for site in sites)
    return EntryCounts(max(map(sum, by_scale)), max(moments), allocated, layout.layers * layout.kv_heads * layout.cacheable)


def _live_before(method: Method, layout: Layout, site: Site, step: Step) -> int:
    """Return the number of entries that all heads of a site keep from the scales before ``step``."""
    if isinstance(method, HeadAware):  # its queries may see fewer
        return sum(method.kept_before(site, step, contextual=few) for few in method.classes.contextual[site.layer])
    return method.attended_by_heads(layout, site, step) - layout.kv_heads * step.count
