"""Checks of a next-scale method, of one whose heads keep different numbers of entries too. Each yields what is not as it should be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from ..cache.layout import Site, scale_steps
from ..contract.method import Method
from ..core.errors import Unsupported
from .capture import NotCapturable, capturing
from .common import DECIDES, Found, finding, neutral_knobs, unlike_masking
from .driver import Outputs, watched
from .next_scale import ScaleCell, ScaleFeed, drive
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
    ran = cell.run(cell.at(Fraction(1), neutral_knobs(cell.cls)))
    yield from unlike(cell, cell.run(StoresAll(ran.method.needs_mass)).out, ran.out, "the full cache's attention")


def tight_is_not_neutral(cell: ScaleCell) -> Found:
    """At a tight budget attention does not answer what it does over the full cache, else the other checks would say nothing."""
    if cell.cls.evicts and not any(unlike(cell, cell.run(StoresAll()).out, cell.reference.out, "", 1e-3)):
        yield finding(cell, "answers that show that something was evicted", "those of the full cache")


def evicting_is_masking(cell: ScaleCell) -> Found:
    """Attention answers as if everything were kept and what was evicted were masked, to 1e-5."""
    yield from unlike_masking(cell, cell.reference.shadow)


def dead_is_never_read(cell: ScaleCell) -> Found:
    """Storage beyond the live entries may hold anything: filling it with NaN changes no bit."""
    yield from unlike(cell, cell.reference.out, cell.run(cell.tight(), cell.poison()).out, "the untouched storage's")


def bytes_are_declared(cell: ScaleCell) -> Found:
    """Allocated is what the method declares, to the byte; what lives stays within it and is counted at the fullest pass."""
    reference = cell.reference
    layout, codec = reference.method.layout, reference.memory.codec
    declared, entry = cell.declared(reference.method), layout.rows * codec.pair_bytes(layout.head_dim, layout.dtype)
    if (allocated := reference.memory.nbytes("slots")) != entry * sum(declared.values()):
        yield finding(cell, f"{entry * sum(declared.values())} B in slots, as declared", f"{allocated} B")
    live = live_entries(cell)
    for step, sites in enumerate(live):
        for site, entries in sites.items():
            if entries > declared[site]:
                yield finding(cell, f"at most {declared[site]} entries in all heads", entries, step, site.layer)
                return
    fullest = entry * max(sum(sites.values()) for sites in live)
    if reference.method.logical_bytes != fullest:
        yield finding(cell, f"{fullest} B live after the fullest pass", f"{reference.method.logical_bytes} B")


def live_entries(cell: ScaleCell) -> list[dict[Site, int]]:
    """The live entries of all heads of each site after each pass of the reference run."""
    return [{site: sum(tokens.size(-1) for tokens in heads) for site, heads in sites.items()}
            for sites in cell.contents(cell.reference.record)]


def declared_is_used(cell: ScaleCell) -> Found:
    """The most entries that the heads of a site hold together after any pass is what the method declares."""
    if not cell.expects_full_use(cell.reference.method):
        return
    live = live_entries(cell)
    for site, declared in cell.declared(cell.reference.method).items():
        if (fullest := max(sites[site] for sites in live)) < declared:
            yield finding(cell, f"{declared} entries in all heads after some pass", fullest, layer=site.layer)
            return


def prefix_is_sound(cell: ScaleCell) -> Found:
    """A head holds each token once, and only tokens that have been drawn."""
    for step, sites in zip(scale_steps(cell.layout), cell.contents(cell.reference.record), strict=True):
        for site, heads in sites.items():
            for head, tokens in enumerate(heads):
                ordered = tokens.sort(-1).values
                drawn = not tokens.numel() or bool(tokens.min() >= 0 and tokens.max() < step.first + step.count)
                if not drawn or not (ordered[..., 1:] > ordered[..., :-1]).all():
                    yield finding(cell, "each token once, of those that have been drawn", tokens[0].tolist(), step.index, site.layer, head)
                    return


def nothing_is_read_on_the_host(cell: ScaleCell) -> Found:
    """No pass asks the device for a number or makes a shape depend on one, or ``capturable`` is false."""
    ran = cell.reference
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
    first, memory = cell.reference, cell.memory()
    cell.run(cell.tight(), memory=memory)
    before = memory.pointers()
    second = cell.run(cell.tight(), memory=memory)
    if memory.pointers() != before:
        yield finding(cell, "the storage of the first generation", "another one")
    yield from unlike(cell, first.out, second.out, "the first generation's")


def memory_is_the_arenas(cell: ScaleCell) -> Found:
    """Every tensor that the method keeps comes from the memory that it was given."""
    ran = cell.reference
    for name, shape in outside(ran.method, ran.memory):
        yield finding(cell, "every tensor that it keeps from memory", f"{name}, of shape {shape}, from elsewhere")


def rows_are_the_same_in_another_order(cell: ScaleCell) -> Found:
    """A row answers and keeps the same in another company and order: rows 2 and 0 of three."""
    whole, rows = cell.reference, [2, 0]
    feed, full = ScaleFeed(cell.layout), cell.layout
    feed.rows = rows
    layout = replace(full, condition=(0, 0), seeds=tuple(full.seeds[row] for row in rows), branches=(0, 0))
    part = cell.run(cell.tight(), feed=feed, layout=layout)
    yield from unlike(cell, {where: out[rows] for where, out in whole.out.items()}, part.out, "what the rows answer among three", 1e-6)
    for step, (mine, theirs) in enumerate(zip(cell.contents(part.record), cell.contents(whole.record), strict=True)):
        for site in mine:
            for head, (alone, among) in enumerate(zip(mine[site], theirs[site], strict=True)):
                if not torch.equal(alone.sort(-1).values, among[rows].sort(-1).values):
                    yield finding(cell, "the entries that the rows keep among three", "others", step, site.layer, head)
                    return
