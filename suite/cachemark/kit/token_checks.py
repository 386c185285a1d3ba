"""Checks of a next-token method. Each is given a cell and yields what is not as it should be; a method that is in order yields nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.engine.graph import Graph
from ..cache.layout import Step, raster_steps
from ..contract.method import Method
from ..core.errors import Unsupported
from .capture import Capture, NotCapturable, capturing
from .common import DECIDES, Found, Poison, calibration, finding, neutral_knobs, unlike_masking
from .findings import Flaw
from .next_token import SEEDS, Answers, Cell, Recorded, TokenRun, generate, recorded
from .oracle import apart
from .reachable import outside
from .tape import Tape

OTHER = (7, 3)
Check = Callable[[Cell], Found]


# -- neutral knobs ----------------------------------------------------------------------------------------------------
@dataclass
class Massive(Method):
    """The full cache on the attention function that returns its probabilities."""

    @property
    def needs_mass(self) -> bool:
        return True


def full(cell: Cell, mass: bool) -> tuple[TokenRun, Answers]:
    """The full cache on the model and with the codec of a cell, and what its attention answered."""
    return _full(replace(cell, cls=Method, mode=()), mass)


@functools.cache
def _full(cell: Cell, mass: bool) -> tuple[TokenRun, Answers]:
    answers = Answers()
    return generate(cell, Massive() if mass else Method(), answers), answers


def undecided(cell: Cell) -> tuple[int, ...]:
    """Passes in which not even a tight budget evicts anything: the condition, the first token, the end of the first line."""
    return 0, 1, next(step.index for step in raster_steps(cell.layout) if "line" in step.edges)


def at_neutral(cell: Cell) -> tuple[TokenRun, Capture]:
    """A generation with neutral knobs, with every operation of the undecided passes seen."""
    method = whole(cell)
    with capturing(undecided(cell), refuses=method.capturable) as (capture, watch):
        return generate(cell, method, watch), capture


def whole(cell: Cell) -> Method:
    """The method at the whole budget, with the knobs that make it neutral."""
    given = calibration(cell.cls, cell.layout)
    return cell.cls.build({**given, **cell.cls.knobs_for(Fraction(1), cell.layout), **dict(cell.mode), **neutral_knobs(cell.cls)})


@functools.cache
def neutral(cell: Cell) -> tuple[TokenRun, Capture]:
    """:func:`at_neutral`, once for each cell."""
    return at_neutral(cell)


def differs_from_full(cell: Cell, ran: TokenRun) -> bool:
    """True where a generation is not the full cache's, bit for bit."""
    return not _equal(ran, full(cell, ran.method.needs_mass)[0])


def neutral_is_full(cell: Cell) -> Found:
    """At the whole budget the method draws what the full cache draws, bit for bit."""
    ran, _ = neutral(cell)
    if differs_from_full(cell, ran):
        answers, (expected, theirs) = Answers(), full(cell, ran.method.needs_mass)
        yield from unlike(cell, (expected, theirs), (generate(cell, whole(cell), answers), answers), "the full cache's")


def unlike(cell: Cell, expected: tuple[TokenRun, Answers], found: tuple[TokenRun, Answers], whose: str) -> Found:
    """The first bit in which two generations differ: an answer of attention, else a logit."""
    if _equal(expected[0], found[0]):
        return
    for (index, site), out in expected[1].out.items():
        other = found[1].out.get((index, site))
        if other is None or other.shape != out.shape:
            shape = "none" if other is None else tuple(other.shape)
            yield finding(cell, f"{whose} answer of shape {tuple(out.shape)}", shape, index, site.layer)
            return
        if wrong := apart(out, other, expected[1].steps[index], site, 0.0):
            yield finding(cell, f"{whose} attention, {wrong.expected:.9g}", f"{wrong.found:.9g}", index, site.layer, wrong.head)
            return
    yield finding(cell, f"{whose} logits and tokens", "others", _first_step(expected[0], found[0]))


def _equal(one: TokenRun, other: TokenRun) -> bool:
    return torch.equal(one.logits, other.logits) and torch.equal(one.tokens, other.tokens)


def _first_step(one: TokenRun, other: TokenRun) -> int | None:
    """The first pass in which logits differ; None where only tokens do."""
    wrong = (one.logits != other.logits).flatten(1).any(1).nonzero()
    return int(wrong[0]) if len(wrong) else None


def neutral_is_no_short_cut(cell: Cell) -> Found:
    """The way to neutral is that of a tight budget before that decides anything: no branch turns the method into the full cache."""
    ran, capture = neutral(cell)
    tight, (_, seen) = recorded(cell), captured(cell)
    if ran.method.kernel != tight.method.kernel:
        yield finding(cell, f"{tight.method.kernel}, with which it attends at a tight budget", ran.method.kernel)
    if ran.memory.pointers().keys() != tight.memory.pointers().keys():
        yield finding(cell, f"{sorted(tight.memory.pointers())}, which it keeps at a tight budget", sorted(ran.memory.pointers()))
    for index in undecided(cell):
        if capture.names(index) != seen.names(index):
            yield finding(cell, "the operations of a tight budget", "others at the whole budget", index)


def tight_is_not_neutral(cell: Cell) -> Found:
    """At a tight budget the logits are not those of the full cache, else the other checks would say nothing."""
    method = cell.tight()
    expected, _ = full(cell, method.needs_mass)
    if cell.cls.evicts and torch.equal(generate(cell, method, forced=expected.tokens).logits, expected.logits):
        yield finding(cell, "logits that show that something was evicted", "those of the full cache")


# -- evicting ---------------------------------------------------------------------------------------------------------
def evicting_is_masking(cell: Cell) -> Found:
    """Attention answers as if everything were kept and what was evicted were masked, to 1e-5."""
    yield from unlike_masking(cell, recorded(cell).shadow)


def limit(ran: Recorded) -> int:
    """Entries that may live: B beside the condition, or B in all where the condition counts."""
    method: Any = ran.method
    return int(method.B) + (method.layout.longest_condition if getattr(method, "keep_condition", True) else 0)


def budget_is_kept(cell: Cell) -> Found:
    """No pass leaves more entries than the budget allows, and none holds more than the slack above it."""
    ran = recorded(cell)
    if not hasattr(ran.method, "B"):
        return
    for moment in ran.moments:
        for site in ran.method.slots:
            after, during = max(moment.after[site]), max(moment.during[site])
            if after > limit(ran) or during > limit(ran) + ran.method.slack:
                yield finding(cell, f"at most {limit(ran)} entries behind a pass and {ran.method.slack} more in it",
                              f"{after} behind it, {during} in it", moment.step.index, site.layer)
                return


def budget_is_used(cell: Cell) -> Found:
    """The fullest pass is as full as it may be: one that keeps less would look better in bytes than it was told to be."""
    ran = recorded(cell)
    if not hasattr(ran.method, "B"):
        return
    fullest = max(n for moment in ran.moments for live in moment.during.values() for n in live)
    if fullest != limit(ran) + ran.method.slack:
        yield finding(cell, f"{limit(ran) + ran.method.slack} entries at the fullest pass", fullest)


def prefix_is_sound(cell: Cell) -> Found:
    """A slot holds what it says once: the condition, and tokens that have been drawn."""
    ran = recorded(cell)
    for moment in ran.moments:
        for site, held in moment.contents.items():
            if told := _unsound(ran, moment.step, held):
                yield finding(cell, told, held[0, 0].tolist(), moment.step.index, site.layer)
                return


def _unsound(ran: Recorded, step: Step, numbers: Tensor) -> str:
    """The rule that a table of held tokens (rows, heads, live) breaks, or nothing."""
    ordered = numbers.long().sort(-1).values
    if ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any():
        return "each token once"
    if getattr(ran.method, "keep_condition", True) and not ((numbers == -1).sum(-1) == ran.method.layout.condition[0]).all():
        return "all of the condition"
    return "tokens that have been drawn" if numbers.min() < -1 or numbers.max() >= step.first + max(1, step.count) else ""


# -- bytes ------------------------------------------------------------------------------------------------------------
def bytes_are_declared(cell: Cell) -> Found:
    """Allocated is what the capacity says, to the byte, and no more than the budget needs."""
    ran = recorded(cell)
    layout, codec = ran.method.layout, ran.memory.codec
    capacity = {site: ran.method.capacity(layout, site) for site in ran.method.slots}
    shape = layout.head_dim, layout.dtype
    shared = len(capacity) * codec.shared_bytes(*shape, layout.longest_condition + layout.visual)
    declared = layout.rows * layout.kv_heads * (sum(capacity.values()) * codec.pair_bytes(*shape) + shared)
    if (held := ran.memory.nbytes("slots")) != declared:
        yield finding(cell, f"{declared} B in slots, as capacity says", f"{held} B")
    staged = 2 * layout.rows * layout.kv_heads * max(capacity.values(), default=0) * layout.head_dim * layout.dtype.itemsize
    if (held := ran.memory.nbytes("stage")) != (0 if codec.exact else staged):
        yield finding(cell, f"{0 if codec.exact else staged} B in the stage", f"{held} B")
    everything = layout.longest_condition + layout.visual - 1
    needed = min(limit(ran) + ran.method.slack, everything) if cell.cls.evicts and hasattr(ran.method, "B") else everything
    for site, entries in capacity.items():
        if entries != needed and (hasattr(ran.method, "B") or not cell.cls.evicts):
            yield finding(cell, f"a capacity of {needed} entries", entries, layer=site.layer)
            return


def live_bytes_are_counted(cell: Cell) -> Found:
    """Live bytes are those of the fullest pass."""
    ran = recorded(cell)
    layout, codec = ran.method.layout, ran.memory.codec
    shape = layout.head_dim, layout.dtype
    fullest = sum(max(max(moment.during[site]) for moment in ran.moments) for site in ran.method.slots)
    shared = len(ran.method.slots) * codec.shared_bytes(*shape, layout.longest_condition + layout.visual)
    expected = layout.rows * layout.kv_heads * (fullest * codec.pair_bytes(*shape) + shared)
    if (told := sum(bank.logical_bytes for bank in ran.method.banks)) != expected or told > ran.memory.nbytes("slots"):
        yield finding(cell, f"{expected} B live at the fullest pass", f"{told} B")


def memory_is_the_arenas(cell: Cell) -> Found:
    """Every tensor that the method keeps comes from the memory that it was given, which is where bytes are counted."""
    ran = recorded(cell)
    for name, shape in outside(ran.method, ran.memory):
        yield finding(cell, "every tensor that it keeps from memory", f"{name}, of shape {shape}, from elsewhere")


# -- storage ----------------------------------------------------------------------------------------------------------
def dead_is_never_read(cell: Cell, method: Method | None = None) -> Found:
    """Storage beyond the live entries may hold anything: filling it with NaN changes no bit."""
    expected, watch, answers = recorded(cell), Poison(), Answers()
    ran = generate(cell, method or cell.tight(), answers, watch)
    if not watch.spoiled:
        yield finding(cell, "storage beyond the live entries", "none")
    yield from unlike(cell, (expected, expected.answers), (ran, answers), "the untouched storage's")


def second_generation_repeats(cell: Cell) -> Found:
    """A second generation in the same memory gives the same bits from the same storage."""
    first, (second, _) = recorded(cell), captured(cell)
    if not _equal(second, first):
        yield finding(cell, "the logits and tokens of the first generation", "others in the second", _first_step(first, second))
    if (now := second.memory.pointers()) != (then := first.memory.pointers()):
        moved = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
        yield finding(cell, "the storage of the first generation", f"{', '.join(moved)} elsewhere in the second")


# -- how a pass runs --------------------------------------------------------------------------------------------------
def seen_passes(cell: Cell) -> set[int]:
    """The condition, the first token, every end of a line and the passes after them, and the last two: every kind of pass there is."""
    steps = raster_steps(cell.layout)
    ends = [step.index for step in steps if "line" in step.edges]
    return {0, 1, *ends, *(end + 1 for end in ends), len(steps) - 2, len(steps) - 1} & {step.index for step in steps}


@functools.cache
def captured(cell: Cell) -> tuple[TokenRun, Capture]:
    """The recorded run once more, in the same memory, with every operation of these passes seen."""
    method = cell.tight()
    with capturing(seen_passes(cell), refuses=method.capturable) as (capture, watch):
        ran = generate(cell, method, watch, memory=recorded(cell).memory)
    return ran, capture


def nothing_is_read_on_the_host(cell: Cell) -> Found:
    """No pass asks the device for a number or makes a shape depend on one, or ``capturable`` is false."""
    if not cell.tight().capturable:
        raise Unsupported(DECIDES)
    try:
        _, capture = captured(cell)
    except NotCapturable as error:
        yield finding(cell, "no read on the host, or capturable = False", error)
        return
    if set(capture.log) != seen_passes(cell) or min(map(len, capture.log.values())) <= 20:
        yield finding(cell, "the operations of every pass", "next to none")


def graph_is_eager(cell: Cell) -> Found:
    """Passes that are recorded and repeated give the eager tokens, bit for bit, for these samples and for others, or ``capturable`` is
    false."""
    if not cell.tight().capturable:
        raise Unsupported(DECIDES)
    memory, lasting = cell.memory(), [*cell.model.parameters(), cell.model.rope]
    for seeds in (SEEDS, OTHER):
        expected = generate(cell, cell.tight(), seeds=seeds)
        try:
            found = generate(cell, cell.tight(), seeds=seeds, memory=taped(memory, lasting))
        except Unsupported as error:
            yield finding(cell, "passes that can be recorded, or capturable = False", error.message)
            return
        if not _equal(found, expected):
            yield Flaw("the eager tokens and logits", "others from the recorded passes; see graph_key", cell.size, seeds,
                          _first_step(found, expected))
            return


def taped(memory: Memory, lasting: Iterable[Tensor]) -> Memory:
    """The memory with an engine that records on tape. ``lasting``: what a model has for good."""
    if isinstance(memory.engine, Graph):
        return memory
    kept = list(lasting)
    tape = Tape(lambda: [*kept, *(tensor for _, tensor in memory.tensors.values()), *engine.storage])
    engine = memory.engine = Graph(tape)
    return memory
