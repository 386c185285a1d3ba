"""Checks of a next-token method whose heads keep different numbers of entries, beside those that every next-token method is held to."""

from __future__ import annotations

from ..cache.layout import Site
from ..contract.heads import HeadGroups, HeadSite
from .common import Found, finding
from .next_token import Cell, Recorded, recorded


def _slots(ran: Recorded) -> dict[HeadSite, int]:
    """The capacity of every slot, in entries of each of its heads."""
    assert isinstance(ran.method, HeadGroups)
    return {place: slot.bank.capacity for place, slot in ran.method.slots_by_heads.items()}


def _fullest(ran: Recorded, place: HeadSite) -> int:
    """The most entries that a head of a slot has in any pass."""
    return max(max(moment.during[place]) for moment in ran.moments)


def heads_are_served_once(cell: Cell) -> Found:
    """Every K/V head of every site has its entries in one slot."""
    layout, places = recorded(cell).method.layout, list(_slots(recorded(cell)))
    for layer in range(layout.layers):
        heads = sorted(head for place in places if place.layer == layer for head in place.heads)
        if heads != list(range(layout.kv_heads)):
            yield finding(cell, f"heads 0 to {layout.kv_heads - 1}, each in one slot", heads, layer=layer)
            return


def bytes_are_declared(cell: Cell) -> Found:
    """Allocated is what ``entries`` says of every site, to the byte, and one stage serves all groups, as large as the largest needs."""
    ran = recorded(cell)
    assert isinstance(ran.method, HeadGroups)
    layout, codec, slots = ran.method.layout, ran.memory.codec, _slots(ran)
    sites = dict.fromkeys(Site(place.stack, place.layer) for place in slots)
    shared = codec.shared_bytes(layout.head_dim, layout.dtype, layout.longest_condition + layout.visual)
    entries = sum(ran.method.entries(layout, site) for site in sites)
    declared = layout.rows * (entries * codec.pair_bytes(layout.head_dim, layout.dtype) + len(sites) * layout.kv_heads * shared)
    if (held := ran.memory.nbytes("slots")) != declared:
        yield finding(cell, f"{declared} B in slots, as entries says", f"{held} B")
    wide = 2 * layout.rows * layout.head_dim * layout.dtype.itemsize
    staged = max(group.layout.kv_heads * max(bank.capacity for bank in group.method.banks) for group in ran.method.groups)
    if (held := ran.memory.nbytes("stage")) != (0 if codec.exact else wide * staged):
        yield finding(cell, f"{0 if codec.exact else wide * staged} B in the stage", f"{held} B")


def declared_is_used(cell: Cell) -> Found:
    """Every slot is full in some pass: one that is never full would allocate for nothing."""
    ran = recorded(cell)
    for place, capacity in _slots(ran).items():
        if (fullest := _fullest(ran, place)) != capacity:
            yield finding(cell, f"{capacity} entries at the fullest pass", fullest, layer=place.layer, head=place.heads[0])
            return


def live_bytes_are_counted(cell: Cell) -> Found:
    """Live bytes are those of each slot at its fullest pass."""
    ran = recorded(cell)
    layout, codec = ran.method.layout, ran.memory.codec
    shared = codec.shared_bytes(layout.head_dim, layout.dtype, layout.longest_condition + layout.visual)
    one, fullest = codec.pair_bytes(layout.head_dim, layout.dtype), {place: _fullest(ran, place) for place in _slots(ran)}
    expected = layout.rows * sum(len(place.heads) * (entries * one + shared) for place, entries in fullest.items())
    if (told := ran.method.logical_bytes) != expected or told > ran.memory.nbytes("slots"):
        yield finding(cell, f"{expected} B live at the fullest pass", f"{told} B")
