"""Checks of a method whose heads keep different numbers of entries. Each is given a cell and yields what is not as it should be."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import torch

from ..cache.layout import scale_steps
from ..core.errors import Unsupported
from . import next_scale
from .capture import NotCapturable, capturing
from .common import DECIDES, Found, finding, neutral_knobs, unlike_masking
from .driver import watched
from .next_scale import ScaleFeed, drive
from .per_head import HeadCell, RaggedPoison, recorded, run
from .reachable import outside
from .scale_checks import StoresAll, unlike


def neutral_is_full(cell: HeadCell) -> Found:
    """At the whole budget attention answers what it does over the full cache, bit for bit."""
    found = run(cell.at(Fraction(1), neutral_knobs(cell.cls)), cell.layout, ScaleFeed(cell.layout), cell.memory())
    yield from unlike(cell, next_scale.run(cell, StoresAll()).out, found.out, "the full cache's attention")


def tight_is_not_neutral(cell: HeadCell) -> Found:
    """At a tight budget attention does not answer what it does over the full cache, else the other checks would say nothing."""
    if not any(unlike(cell, next_scale.run(cell, StoresAll()).out, recorded(cell).out, "", 1e-3)):
        yield finding(cell, "answers that show that something was evicted", "those of the full cache")


def evicting_is_masking(cell: HeadCell) -> Found:
    """Attention answers as if everything were kept and what each head evicted were masked, to 1e-5."""
    yield from unlike_masking(cell, recorded(cell).shadow)


def dead_is_never_read(cell: HeadCell) -> Found:
    """Storage behind the live extents may hold anything: filling it with NaN changes no bit."""
    spoilt = run(cell.tight(), cell.layout, ScaleFeed(cell.layout), cell.memory(), RaggedPoison())
    yield from unlike(cell, recorded(cell).out, spoilt.out, "the untouched storage's")


def bytes_are_declared(cell: HeadCell) -> Found:
    """Allocated is what ``entries`` says of every site, to the byte; no pass leaves more there, and the fullest one is counted."""
    ran = recorded(cell)
    layout, codec = ran.layout, ran.memory.codec
    one = layout.rows * codec.pair_bytes(layout.head_dim, layout.dtype)
    declared = {site: ran.method.entries(layout, site) for site in ran.method.ragged}
    if (held := ran.memory.nbytes("slots")) != one * sum(declared.values()):
        yield finding(cell, f"{one * sum(declared.values())} B in slots, as entries says", f"{held} B")
    for step, live in enumerate(ran.record.lengths):
        for site, lengths in live.items():
            if sum(lengths) > declared[site]:
                yield finding(cell, f"at most {declared[site]} entries in all heads", sum(lengths), step, site.layer)
                return
    fullest = one * max(sum(map(sum, live.values())) for live in ran.record.lengths)
    if ran.method.logical_bytes != fullest:
        yield finding(cell, f"{fullest} B live behind the fullest pass", f"{ran.method.logical_bytes} B")


def declared_is_used(cell: HeadCell) -> Found:
    """The most that the heads of a site hold together behind any pass is what ``entries`` says."""
    ran = recorded(cell)
    for site in ran.method.ragged:
        most, declared = max(sum(live[site]) for live in ran.record.lengths), ran.method.entries(ran.layout, site)
        if most < declared:
            yield finding(cell, f"{declared} entries in all heads behind some pass", most, layer=site.layer)
            return


def prefix_is_sound(cell: HeadCell) -> Found:
    """A head holds what it says once, and it has been drawn."""
    for step, sites in zip(scale_steps(cell.layout), recorded(cell).record.contents, strict=True):
        for site, heads in sites.items():
            for head, held in enumerate(heads):
                ordered = held.sort(-1).values
                drawn = not held.numel() or bool(held.min() >= 0 and held.max() < step.first + step.count)
                if not drawn or not (ordered[..., 1:] > ordered[..., :-1]).all():
                    yield finding(cell, "each token once, of those that have been drawn", held[0].tolist(), step.index, site.layer, head)
                    return


def second_generation_repeats(cell: HeadCell) -> Found:
    """A second generation in the same memory gives the same bits from the same storage."""
    memory = cell.memory()
    run(cell.tight(), cell.layout, ScaleFeed(cell.layout), memory)
    before = memory.pointers()
    second = run(cell.tight(), cell.layout, ScaleFeed(cell.layout), memory)
    if memory.pointers() != before:
        yield finding(cell, "the storage of the first generation", "another one")
    yield from unlike(cell, recorded(cell).out, second.out, "the first generation's")


def memory_is_the_arenas(cell: HeadCell) -> Found:
    """Every tensor that the method keeps comes from the memory that it was given."""
    for name, shape in outside(recorded(cell).method, recorded(cell).memory):
        yield finding(cell, "every tensor that it keeps from memory", f"{name}, of shape {shape}, from elsewhere")


def nothing_is_read_on_the_host(cell: HeadCell) -> Found:
    """No pass asks the device for a number or makes a shape depend on one, or ``capturable`` is false."""
    if not recorded(cell).method.capturable:
        raise Unsupported(DECIDES)
    passes, memory = {step.index for step in scale_steps(cell.layout)}, cell.memory()
    try:
        with capturing(passes) as (capture, watch):
            again = drive(watched(cell.tight(), watch), cell.layout, ScaleFeed(cell.layout), memory)
    except NotCapturable as error:
        yield finding(cell, "no read on the host, or capturable = False", error)
        return
    if set(capture.log) != passes or min(map(len, capture.log.values())) <= 5:
        yield finding(cell, "the operations of every pass", "next to none")
    yield from unlike(cell, recorded(cell).out, again, "the first generation's")


def rows_are_the_same_in_another_order(cell: HeadCell) -> Found:
    """A row answers and keeps the same in another company and order: rows 2 and 0 of three."""
    whole, rows, feed, full = recorded(cell), [2, 0], ScaleFeed(cell.layout), cell.layout
    feed.rows = rows
    layout = replace(full, condition=(0, 0), seeds=tuple(full.seeds[row] for row in rows), branches=(0, 0))
    part = run(cell.tight(), layout, feed, cell.memory())
    yield from unlike(cell, {where: out[rows] for where, out in whole.out.items()}, part.out, "what the rows answer among three", 1e-6)
    for step, (mine, theirs) in enumerate(zip(part.record.contents, whole.record.contents, strict=True)):
        for site in mine:
            for head, (one, other) in enumerate(zip(mine[site], theirs[site], strict=True)):
                if not torch.equal(one.sort(-1).values, other[rows].sort(-1).values):
                    yield finding(cell, "the entries that the rows keep among three", "others", step, site.layer, head)
                    return


HEAD = (
    neutral_is_full, tight_is_not_neutral, evicting_is_masking, bytes_are_declared, declared_is_used, prefix_is_sound, dead_is_never_read,
    second_generation_repeats, memory_is_the_arenas, nothing_is_read_on_the_host, rows_are_the_same_in_another_order,
)
