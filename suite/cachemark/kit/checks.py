"""Checks of a method. Each is given a cell of its family and yields what is not as it should be; a method in order yields nothing."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..cache.layout import Layout, Site, Step
from ..contract.heads import HeadGroups, PerHead
from ..contract.method import Method
from ..core.errors import CachemarkError, Unsupported
from .capture import Capture, NotCapturable, capturing
from .common import DECIDES, Found, KitRun, MethodCell, Poison, finding
from .cpu_graphs import record_on_cpu
from .driver import Place, entries_of
from .findings import Flaw
from .next_token import OTHER_SEEDS, SAMPLING, SEEDS, Cell
from .oracle import apart
from .reachable import outside
from .settings import settings_restored


# -- the full cache ---------------------------------------------------------------------------------------------------
def unlike(cell: MethodCell, expected: KitRun, found: KitRun, whose: str, tolerance: float = 0.0) -> Found:
    """The first place in which two generations differ: an answer of attention, else logits or tokens."""
    for (index, site), out in expected.answers.items() if found.answers else ():
        other = found.answers.get((index, site))
        if other is None or other.shape != out.shape:
            shape = "none" if other is None else tuple(other.shape)
            yield finding(cell, f"{whose} answer of shape {tuple(out.shape)}", shape, index, site.layer)
            return
        if wrong := apart(out, other, index, site, tolerance):
            yield finding(cell, f"{whose} attention, {wrong.expected:.9g}", f"{wrong.found:.9g}", index, site.layer, wrong.head)
            return
    if not same(expected, found):
        yield finding(cell, f"{whose} logits and tokens", "others", first_step(expected, found))


def same(one: KitRun, other: KitRun) -> bool:
    """True where two generations have equal logits and tokens, as far as both have any."""
    pairs = ((one.logits, other.logits), (one.tokens, other.tokens))
    return all(a is None or b is None or torch.equal(a, b) for a, b in pairs)


def first_step(one: KitRun, other: KitRun) -> int | None:
    """The first pass in which logits differ; None where only tokens do."""
    if one.logits is None or other.logits is None:
        return None
    wrong = (one.logits != other.logits).flatten(1).any(1).nonzero()
    return int(wrong[0]) if len(wrong) else None


def neutral_is_full(cell: MethodCell) -> Found:
    """At the whole budget the method does what the full cache does, bit for bit."""
    ran = cell.run(cell.neutral())
    yield from unlike(cell, cell.full(ran.method), ran, "the full cache's")


def neutral_is_no_short_cut(cell: Cell) -> Found:
    """The way to neutral is that of a tight budget before that decides anything: no branch turns the method into the full cache."""
    method = cell.neutral()
    with capturing(cell.undecided, refuses=method.capturable) as (capture, watch):
        ran = cell.run(method, watch, bare=True)
    tight, (_, seen) = cell.record, captured(cell)
    if ran.method.kernel != tight.method.kernel:
        yield finding(cell, f"{tight.method.kernel}, with which it attends at a tight budget", ran.method.kernel)
    if ran.memory.pointers().keys() != tight.memory.pointers().keys():
        yield finding(cell, f"{sorted(tight.memory.pointers())}, which it keeps at a tight budget", sorted(ran.memory.pointers()))
    for index in cell.undecided:
        if capture.names(index) != seen.names(index):
            yield finding(cell, "the operations of a tight budget", "others at the whole budget", index)


def tight_is_not_neutral(cell: MethodCell) -> Found:
    """At a tight budget the method does not do what the full cache does, else the other checks would say nothing."""
    full = cell.full(cell.tight())
    found = cell.record if full.tokens is None else cell.run(cell.tight(), forced=full.tokens)
    if cell.cls.evicts and not any(unlike(cell, full, found, "", 1e-3)):
        yield finding(cell, "answers that show that something was evicted", "those of the full cache")


# -- evicting ---------------------------------------------------------------------------------------------------------
def evicting_is_masking(cell: MethodCell) -> Found:
    """Attention answers as if everything were kept and what was evicted were masked, to 1e-5."""
    shadow = cell.record.shadow
    if cell.cls.evicts and not shadow.hidden:
        yield finding(cell, "entries that are evicted at a tight budget", "none")
    if wrong := shadow.first:
        expected = f"{wrong.expected:.6g}, as the masked attention answers"
        yield finding(cell, expected, f"{wrong.found:.6g}", wrong.step, wrong.layer, wrong.head)


def limit(method: Any) -> int:
    """Entries that may live: B beside the condition, or B in all where the condition counts."""
    return int(method.B) + (method.layout.longest_condition if getattr(method, "keep_condition", True) else 0)


def budget_is_kept(cell: MethodCell) -> Found:
    """No pass leaves more entries than the budget allows, and none holds more than the slack above it."""
    method = cell.record.method
    if not hasattr(method, "B"):
        return
    for moment in cell.record.moments:
        for site in method.slots:
            after, during = max(moment.after[site]), max(moment.during[site])
            if after > limit(method) or during > limit(method) + method.slack:
                yield finding(cell, f"at most {limit(method)} entries behind a pass and {method.slack} more in it",
                              f"{after} behind it, {during} in it", moment.step.index, site.layer)
                return


def budget_is_used(cell: MethodCell) -> Found:
    """The fullest pass is as full as it may be: one that keeps less would look better in bytes than it was told to be."""
    method = cell.record.method
    if not hasattr(method, "B"):
        return
    fullest = max(n for moment in cell.record.moments for heads in moment.during.values() for n in heads)
    if fullest != limit(method) + method.slack:
        yield finding(cell, f"{limit(method) + method.slack} entries at the fullest pass", fullest)


def heads_are_served_once(cell: MethodCell) -> Found:
    """Every K/V head of every site has its entries in one slot."""
    layout, places = cell.record.method.layout, list(entries_of(cell.record.method))
    for layer in range(layout.layers):
        heads = sorted(head for place in places if place.layer == layer for head in getattr(place, "heads", ()))
        if heads != list(range(layout.kv_heads)):
            yield finding(cell, f"heads 0 to {layout.kv_heads - 1}, each in one slot", heads, layer=layer)
            return


def prefix_is_sound(cell: MethodCell) -> Found:
    """A head holds each token once, of those that have been drawn, and all of the condition."""
    for moment in cell.record.moments:
        for place, heads in moment.contents.items():
            for head, tokens in enumerate(heads):
                if rule := _broken_rule(cell.record.method, moment.step, tokens):
                    yield finding(cell, rule, tokens[0].tolist(), moment.step.index, place.layer, head)
                    return


def _broken_rule(method: Method, step: Step, tokens: torch.Tensor) -> str:
    """The rule that the tokens of a head, (rows, live), break, or nothing."""
    ordered = tokens.long().sort(-1).values
    if ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any():
        return "each token once"
    if getattr(method, "keep_condition", True) and not ((tokens == -1).sum(-1) == method.layout.condition[0]).all():
        return "all of the condition"
    drawn = not tokens.numel() or bool(tokens.min() >= -1 and tokens.max() < step.first + max(1, step.count))
    return "" if drawn else "tokens that have been drawn"


# -- bytes ------------------------------------------------------------------------------------------------------------
def declared_entries(method: Method) -> dict[Site, int]:
    """The entries of all heads of each site that the method declares, in one row."""
    layout, sites = method.layout, dict.fromkeys(Site(place.stack, place.layer) for place in entries_of(method))
    if isinstance(method, HeadGroups | PerHead):
        return {site: method.entries(layout, site) for site in sites}
    return {site: layout.kv_heads * method.capacity(layout, site) for site in sites}


def fullest_entries(ran: KitRun) -> dict[Place, int]:
    """The most entries that all heads of a place have in any pass, in one row."""
    return {place: max(sum(moment.during[place]) for moment in ran.moments) for place in entries_of(ran.method)}


def _bytes(ran: KitRun, entries: int) -> int:
    """Bytes of so many entries in each row, with what the codec keeps beside them."""
    layout, codec = ran.method.layout, ran.memory.codec
    shape, sites = (layout.head_dim, layout.dtype), len(declared_entries(ran.method))
    shared = sites * layout.kv_heads * codec.shared_bytes(*shape, layout.longest_condition + layout.visual)
    return layout.rows * (entries * codec.pair_bytes(*shape) + shared)


def bytes_are_declared(cell: MethodCell) -> Found:
    """Allocated is what the method declares, to the byte."""
    ran = cell.record
    declared = _bytes(ran, sum(declared_entries(ran.method).values()))
    if (allocated := ran.memory.nbytes("slots")) != declared:
        yield finding(cell, f"{declared} B in slots, as declared", f"{allocated} B")
    if not ran.method.layout.scales and (allocated := ran.memory.nbytes("stage")) != (needed := _staged_bytes(ran)):
        yield finding(cell, f"{needed} B in the stage", f"{allocated} B")


def _staged_bytes(ran: KitRun) -> int:
    """Bytes of the decoded entries that the largest slot shows; where the codec rounds nothing there are none."""
    method, layout = ran.method, ran.method.layout
    if ran.memory.codec.exact:
        return 0
    entries = max(declared_entries(method).values(), default=0)
    if isinstance(method, HeadGroups):
        entries = max(group.layout.kv_heads * max(bank.capacity for bank in group.method.banks) for group in method.groups)
    return 2 * layout.rows * entries * layout.head_dim * layout.dtype.itemsize


def declared_is_used(cell: MethodCell) -> Found:
    """Every slot is full in some pass: one that is never full would allocate for nothing."""
    method = cell.record.method
    if cell.cls.evicts and not isinstance(method, HeadGroups | PerHead) and not hasattr(method, "B"):
        return
    fullest = fullest_entries(cell.record)
    for site, declared in declared_entries(method).items():
        used = sum(entries for place, entries in fullest.items() if (place.stack, place.layer) == site)
        if used != declared:
            yield finding(cell, f"{declared} entries of all heads at the fullest pass, as declared", used, layer=site.layer)
            return


def live_bytes_are_counted(cell: MethodCell) -> Found:
    """Live bytes are those of the fullest pass."""
    ran = cell.record
    at_once = max(sum(map(sum, moment.during.values())) for moment in ran.moments)
    expected = _bytes(ran, at_once if ran.method.layout.scales else sum(fullest_entries(ran).values()))
    if (counted := ran.method.logical_bytes) != expected or counted > ran.memory.nbytes("slots"):
        yield finding(cell, f"{expected} B live at the fullest pass", f"{counted} B")


def memory_is_the_arenas(cell: MethodCell) -> Found:
    """Every tensor that the method keeps comes from the memory that it was given, which is where bytes are counted."""
    for name, shape in outside(cell.record.method, cell.record.memory):
        yield finding(cell, "every tensor that it keeps from memory", f"{name}, of shape {shape}, from elsewhere")


# -- storage ----------------------------------------------------------------------------------------------------------
def dead_is_never_read(cell: MethodCell) -> Found:
    """Storage beyond the live entries may hold anything: filling it with NaN changes no bit."""
    watch = Poison()
    ran = cell.run(cell.tight(), watch)
    if not watch.spoiled:
        yield finding(cell, "storage beyond the live entries", "none")
    yield from unlike(cell, cell.record, ran, "the untouched storage's")


def second_generation_repeats(cell: MethodCell) -> Found:
    """A second generation in the same memory gives the same bits from the same storage."""
    memory = cell.memory()
    first, before = cell.run(cell.tight(), memory=memory), memory.pointers()
    second, now = cell.run(cell.tight(), memory=memory), memory.pointers()
    yield from unlike(cell, first, second, "the first generation's")
    if moved := sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name)):
        yield finding(cell, "the storage of the first generation", f"{', '.join(moved)} elsewhere in the second")


# -- how a pass runs --------------------------------------------------------------------------------------------------
def timed_is_shown(cell: MethodCell) -> Found:
    """The fidelity pass, which shows what tokens are drawn from, runs as the timed pass: it draws the same tokens."""
    timed = cell.run(cell.tight(), bare=True, shown=False)
    yield from unlike(cell, cell.record, timed, "the fidelity pass's")


@functools.cache
def captured(cell: MethodCell) -> tuple[KitRun, Capture]:
    """The reference run once more, in the same memory, with every operation of the cell's passes seen."""
    method = cell.tight()
    with capturing(cell.passes, refuses=method.capturable) as (capture, watch):
        ran = cell.run(method, watch, memory=cell.record.memory, bare=True)
    return ran, capture


def nothing_is_read_on_the_host(cell: MethodCell) -> Found:
    """No pass asks the device for a number or makes a shape depend on one, or ``capturable`` is false."""
    if not cell.tight().capturable:
        raise Unsupported(DECIDES)
    try:
        ran, capture = captured(cell)
    except NotCapturable as error:
        yield finding(cell, "no read on the host, or capturable = False", error)
        return
    if min(map(len, capture.log.values())) <= 5:
        yield finding(cell, "the operations of every pass", "next to none")
    yield from unlike(cell, cell.record, ran, "the first generation's")


def graph_is_eager(cell: Cell) -> Found:
    """Passes that are recorded and repeated give the eager tokens, bit for bit, for these samples and for others, or ``capturable`` is
    false."""
    if not cell.tight().capturable:
        raise Unsupported(DECIDES)
    memory = record_on_cpu(cell.memory(), [*cell.parameters, cell.model.rope])
    for seeds in (SEEDS, OTHER_SEEDS):
        expected = cell.run(cell.tight(), seeds=seeds, bare=True)
        try:
            found = cell.run(cell.tight(), seeds=seeds, memory=memory, bare=True)
        except Unsupported as error:
            yield finding(cell, "passes that can be recorded, or capturable = False", error.message)
            return
        if not same(expected, found):
            yield Flaw("the eager tokens and logits", "others from the recorded passes; see graph_key", cell.size, seeds,
                       first_step(found, expected))
            return


def samples_are_the_same_in_another_order(cell: MethodCell) -> Found:
    """A sample answers, keeps and draws the same in another company and order: samples 2 and 0 of three."""
    if not cell.tight().capturable:
        raise Unsupported(DECIDES)
    if cell.layout.paradigm == "masked" and not cell.memory().codec.exact:
        raise Unsupported("What a codec rounds otherwise turns a sample.")
    whole, rows = cell.record, [2, 0]
    part = cell.run(cell.tight(), seeds=[cell.seeds[row] for row in rows])
    if whole.tokens is not None and part.tokens is not None:
        if (most := float((part.tokens - whole.tokens[rows]).abs().max())) > 1e-4:
            yield finding(cell, "the tokens that it draws among three", f"{most:.3g} apart")
        return
    among = KitRun(whole.method, whole.memory, {where: out[rows] for where, out in whole.answers.items()})
    yield from unlike(cell, among, part, "among three the rows'", 1e-6)
    for mine, theirs in zip(part.moments, whole.moments, strict=True):
        for place, heads in mine.contents.items():
            for head, tokens in enumerate(heads):
                if not torch.equal(tokens.sort(-1).values, theirs.contents[place][head][rows].sort(-1).values):
                    yield finding(cell, "the entries that the rows keep among three", "others", mine.step.index, place.layer, head)
                    return


# -- manners ----------------------------------------------------------------------------------------------------------
def settings_are_left_alone(cell: MethodCell) -> Found:
    """A generation changes no setting of torch, such as TF32 or the number of threads: the full cache beside it would run under it too."""
    with settings_restored() as changes:
        cell.run(cell.tight(), bare=True)
    if changes:
        yield finding(cell, "the settings of torch as they were", "; ".join(changes))


def other_numbers_run(cell: Cell) -> Found:
    """In bf16 the method runs, its logits are numbers, and its slots take half the bytes."""
    if cell.codec != "native":
        raise Unsupported("The bytes of a codec do not follow those of numbers.")
    allocated, logits, memory = cell.record.memory.nbytes("slots"), list[torch.Tensor](), cell.memory()
    cell.in_bf16.generate(torch.tensor(SEEDS), list(SEEDS), cell.tight(), SAMPLING, memory, see=lambda _, seen: logits.append(seen.clone()))
    if not all(bool(seen.isfinite().all()) for seen in logits):
        yield finding(cell, "finite logits in bf16", "NaN or infinity")
    if 2 * memory.nbytes("slots") != allocated:
        yield finding(cell, f"{allocated // 2} B in slots in bf16, half of those in fp32", f"{memory.nbytes('slots')} B")


def knobs_are_refused(cell: MethodCell) -> Found:
    """A knob that there is not, or of another type, is an error of ours that says so, and so is one without room for anything."""
    wrong: dict[str, Any] = {"no_such_knob": 1}
    wrong |= {knob: {} for knob, value in cell.tight().knobs().items() if type(value) in (int, str)}
    for knob, value in wrong.items():
        try:
            cell.cls.build({knob: value})
        except CachemarkError:
            continue
        except Exception as error:
            yield finding(cell, f"BadKnob for {knob} = {value!r}", f"{type(error).__name__}: {error}")
        else:
            yield finding(cell, f"BadKnob for {knob} = {value!r}", "it is taken")
    if "B" in cell.tight().knobs() and not _refuses_nothing(cell.cls, cell.layout):
        yield finding(cell, "BadKnob for B = -1", "it is taken")


def _refuses_nothing(cls: type[Method], layout: Layout) -> bool:
    """True where a budget of less than nothing is refused."""
    try:
        cls.build({"B": -1}).resolve(layout)
    except CachemarkError:
        return True
    return False
