"""Checks of a next-scale method. Each is given a cell and yields what is not as it should be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from ..cache.layout import scale_steps
from ..contract.method import Method
from ..core.errors import Unsupported
from .capture import NotCapturable, capturing
from .common import DECIDES, Found, Poison, finding, neutral_knobs, unlike_masking
from .driver import Outputs, watched
from .next_scale import ScaleCell, ScaleFeed, drive, recorded, run
from .oracle import apart
from .reachable import outside


@dataclass
class StoresAll(Method):
    """The full cache, on the attention function that a method needs."""

    mass: bool = False

    @property
    def needs_mass(self) -> bool:
        return self.mass


def unlike(cell: ScaleCell, expected: Outputs, found: Outputs, whose: str, tolerance: float = 0.0) -> Found:
    """The first answer of attention that differs."""
    steps = {step.index: step for step in scale_steps(cell.layout)}
    for (index, site), out in expected.items():
        if wrong := apart(out, found[index, site], steps[index], site, tolerance):
            yield finding(cell, f"{whose}, {wrong.expected:.9g}", f"{wrong.found:.9g}", index, site.layer, wrong.head)
            return


def neutral_is_full(cell: ScaleCell) -> Found:
    """At the whole budget attention answers what it does over the full cache, bit for bit."""
    ran = run(cell, cell.at(Fraction(1), neutral_knobs(cell.cls)))
    yield from unlike(cell, run(cell, StoresAll(ran.method.needs_mass)).out, ran.out, "the full cache's attention")


def tight_is_not_neutral(cell: ScaleCell) -> Found:
    """At a tight budget attention does not answer what it does over the full cache, else the other checks would say nothing."""
    if cell.cls.evicts and not any(unlike(cell, run(cell, StoresAll()).out, recorded(cell).out, "", 1e-3)):
        yield finding(cell, "answers that show that something was evicted", "those of the full cache")


def evicting_is_masking(cell: ScaleCell) -> Found:
    """Attention answers as if everything were kept and what was evicted were masked, to 1e-5."""
    yield from unlike_masking(cell, recorded(cell).shadow)


def dead_is_never_read(cell: ScaleCell) -> Found:
    """Storage beyond the live entries may hold anything: filling it with NaN changes no bit."""
    yield from unlike(cell, recorded(cell).out, run(cell, cell.tight(), Poison()).out, "the untouched storage's")


def bytes_are_declared(cell: ScaleCell) -> Found:
    """Allocated is what the capacity says, to the byte; what lives stays within it and is counted at the fullest pass."""
    ran = recorded(cell)
    layout, codec = ran.method.layout, ran.memory.codec
    capacity = {site: ran.method.capacity(layout, site) for site in ran.method.slots}
    entry = 2 * layout.rows * layout.kv_heads * codec.entry_bytes(layout.head_dim, layout.dtype)
    if (held := ran.memory.nbytes("slots")) != entry * sum(capacity.values()):
        yield finding(cell, f"{entry * sum(capacity.values())} B in slots, as capacity says", f"{held} B")
    for step, live in enumerate(ran.record.live):
        for site, n in live.items():
            if n > capacity[site]:
                yield finding(cell, f"at most {capacity[site]} entries", n, step, site.layer)
                return
    fullest = max(sum(live.values()) for live in ran.record.live)
    if ran.method.logical_bytes != fullest * entry:
        yield finding(cell, f"{fullest * entry} B live at the fullest pass", f"{ran.method.logical_bytes} B")


def budget_is_used(cell: ScaleCell) -> Found:
    """The fullest pass is as full as it may be."""
    ran = recorded(cell)
    fullest = max(n for live in ran.record.live for n in live.values())
    if cell.cls.evicts and hasattr(ran.method, "B") and fullest != ran.method.B:
        yield finding(cell, f"{ran.method.B} entries at the fullest pass", fullest)


def prefix_is_sound(cell: ScaleCell) -> Found:
    """A slot holds what it says once, and it has been drawn."""
    for step, sites in zip(scale_steps(cell.layout), recorded(cell).record.contents, strict=True):
        for site, held in sites.items():
            ordered = held.long().sort(-1).values
            drawn = not held.numel() or bool(held.min() >= 0 and held.max() < step.first + step.count)
            if not drawn or not (ordered[..., 1:] > ordered[..., :-1]).all():
                yield finding(cell, "each token once, of those that have been drawn", held[0, 0].tolist(), step.index, site.layer)
                return


def nothing_is_read_on_the_host(cell: ScaleCell) -> Found:
    """No pass asks the device for a number or makes a shape depend on one, or ``capturable`` is false."""
    ran = recorded(cell)
    if not ran.method.capturable:
        raise Unsupported(DECIDES)
    passes = {step.index for step in scale_steps(cell.layout)}
    try:
        with capturing(passes) as (capture, watch):
            again = drive(watched(cell.tight(), watch), cell.layout, ScaleFeed(cell.layout), ran.memory)
    except NotCapturable as error:
        yield finding(cell, "no read on the host, or capturable = False", error)
        return
    if set(capture.log) != passes or min(map(len, capture.log.values())) <= 5:
        yield finding(cell, "the operations of every pass", "next to none")
    yield from unlike(cell, ran.out, again, "the first generation's")


def second_generation_repeats(cell: ScaleCell) -> Found:
    """A second generation in the same memory gives the same bits from the same storage."""
    first, memory = recorded(cell), cell.memory()
    run(cell, cell.tight(), memory=memory)
    before = memory.pointers()
    second = run(cell, cell.tight(), memory=memory)
    if memory.pointers() != before:
        yield finding(cell, "the storage of the first generation", "another one")
    yield from unlike(cell, first.out, second.out, "the first generation's")


def memory_is_the_arenas(cell: ScaleCell) -> Found:
    """Every tensor that the method keeps comes from the memory that it was given."""
    ran = recorded(cell)
    for name, shape in outside(ran.method, ran.memory):
        yield finding(cell, "every tensor that it keeps from memory", f"{name}, of shape {shape}, from elsewhere")


def rows_are_the_same_in_another_order(cell: ScaleCell) -> Found:
    """A row answers and keeps the same in another company and order: rows 2 and 0 of three."""
    whole, rows = recorded(cell), [2, 0]
    feed, full = ScaleFeed(cell.layout), cell.layout
    feed.rows = rows
    layout = replace(full, condition=(0, 0), seeds=tuple(full.seeds[row] for row in rows), branches=(0, 0))
    part = run(cell, cell.tight(), feed=feed, layout=layout)
    yield from unlike(cell, {where: out[rows] for where, out in whole.out.items()}, part.out, "what the rows answer among three", 1e-6)
    for step, (mine, theirs) in enumerate(zip(part.record.contents, whole.record.contents, strict=True)):
        for site in mine:
            if not torch.equal(mine[site].sort(-1).values, theirs[site][rows].sort(-1).values):
                yield finding(cell, "the entries that the rows keep among three", "others", step, site.layer)
                return


