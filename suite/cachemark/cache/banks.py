"""Storage for the sites of a model: one bank per capacity, of the kind that the codec needs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from .arena import Memory
from .bank import SlotBank
from .grouped_keys import GroupedBank
from .layout import Layout, Site


def banks(layout: Layout, capacity: Mapping[Site, int], memory: Memory) -> list[SlotBank]:
    """Return a bank for each group of sites with equal capacity (in entries)."""
    kind = GroupedBank if memory.codec.grouped else SlotBank
    ordered = sorted(capacity, key=lambda site: (capacity[site], site))
    return [kind(layout, tuple(sites), entries, memory) for entries, sites in groupby(ordered, key=capacity.__getitem__)]
