"""Checks of a method. Each yields deviations; a correct method yields nothing."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..cache.bank import HIDDEN
from ..cache.layout import Site, Step
from ..contract.heads import HeadGroups, PerHead
from ..contract.method import Method
from ..core.errors import CachemarkError, Unsupported
from .budgets import declared_entries
from .capture import Capture, NotCapturable, capture_on_cpu, capturing
from .common import DECIDES, Findings, KitCell, KitRun, MethodCell, Poison, SettingsWatch, settings_restored
from .driver import Place, entries_of
from .next_token import SAMPLING, SEEDS, Cell
from .oracle import TOLERANCE, Shadow, computes_attention, first_difference
from .reachable import outside

ACCUMULATED = 1e-3  # of attention and logits, where an output that differs in its last bit is the input of later layers


# -- the full cache ---------------------------------------------------------------------------------------------------
def differences(cell: KitCell, expected: KitRun, actual: KitRun, whose: str, tolerance: float = 0.0,
                seeds: Sequence[int] | None = None) -> Findings:  # fmt: skip
    """Yield the first difference of two generations above ``tolerance``, in attention, logits or tokens."""
    for (index, site), out in expected.answers.items() if actual.answers else ():
        other = actual.answers.get((index, site))
        if other is None or other.shape != out.shape:
            shape = "none" if other is None else tuple(other.shape)
            yield cell.finding(f"{whose} output of shape {tuple(out.shape)}", shape, index, site.layer)
            return
        if wrong := first_difference(out, other, index, site, tolerance):
            yield cell.finding(f"{whose} attention, {wrong.expected:.9g}", f"{wrong.actual:.9g}", index, site.layer, wrong.head)
            return
    pairs = () if expected.logits is None or actual.logits is None else zip(expected.logits, actual.logits, strict=True)
    wrong_step = next((step for step, pair in enumerate(pairs) if not _equal(*pair, tolerance)), None)
    first, second = expected.tokens, actual.tokens
    if wrong_step is not None or (first is not None and second is not None and not _equal(first, second, tolerance)):
        yield cell.finding(f"{whose} logits and tokens", "different ones", wrong_step, seeds=seeds)


def _equal(first: torch.Tensor, second: torch.Tensor, tolerance: float) -> bool:
    return torch.equal(first, second) or (tolerance > 0 and bool(((first - second).abs() <= tolerance).all()))


def neutral_is_full(cell: MethodCell) -> Findings:
    """At full budget the method equals the full cache, bit for bit or to 1e-5 with attention of its own."""
    method = cell.neutral()
    method.resolve(cell.layout)
    if not computes_attention(method):
        ran = cell.run(method)
        yield from differences(cell, cell.full(ran.method), ran, "the full cache's")
        return
    shadow, full = Shadow(), cell.full(method)
    masked = cell.layout.paradigm == "masked"
    ran = cell.run(method) if masked else cell.run(method, shadow, forced=full.tokens)
    if wrong := shadow.first:
        yield cell.finding(f"{wrong.expected:.6g}, as the full cache's attention gives to {TOLERANCE:g}", f"{wrong.actual:.6g}", wrong.step,
                           wrong.layer, wrong.head)
    elif shadow.hidden:
        yield cell.finding("no evicted entries at full budget", shadow.hidden)
    else:
        yield from differences(cell, full, ran, "the full cache's", ACCUMULATED)


def neutral_is_no_special_case(cell: Cell) -> Findings:
    """At full budget the method runs the same operations as at a tight budget before anything is evicted."""
    method = cell.neutral()
    with capturing(cell.undecided, refuses=method.capturable) as capture:
        ran = cell.run(method, capture, bare=True)
    tight, (_, tight_capture) = cell.record, captured(cell)
    if ran.method.kernel != tight.method.kernel:
        yield cell.finding(f"the kernel {tight.method.kernel} of a tight budget", ran.method.kernel)
    kind: Callable[[Iterable[str]], object] = sorted
    if len(ran.method.banks) != len(tight.method.banks):  # layers with budgets of their own: one bank each, and one of all at full budget
        kind = set
    tensors, tight_tensors = (kind(name if kind is sorted else name.partition(".")[0] for name in run.memory.pointers())
                              for run in (ran, tight))
    if tensors != tight_tensors:
        yield cell.finding(f"the tensors of a tight budget, {tight_tensors}", tensors)
    for index in cell.undecided:
        names, tight_names = ([name for name, _ in log[index]] for log in (capture.log, tight_capture.log))
        if names != tight_names and (kind is sorted or kind(names) != kind(tight_names)):
            yield cell.finding("the operations of a tight budget", "different ones at full budget", index)


def tight_is_not_neutral(cell: MethodCell) -> Findings:
    """At a tight budget the method differs from the full cache, so that the other checks test eviction."""
    full = cell.full(cell.tight())
    ran = cell.record if full.tokens is None else cell.run(cell.tight(), forced=full.tokens)
    if (cell.cls.evicts or cell.cls.selects) and not any(differences(cell, full, ran, "", 1e-3)):
        yield cell.finding("outputs that differ from the full cache's", "the same")


# -- evicting ---------------------------------------------------------------------------------------------------------
def evicting_is_masking(cell: MethodCell) -> Findings:
    """Attention equals attention over all entries with the evicted and unselected ones masked, to 1e-5.

    Stored values change only by ``SlotBank.merge``, which adds evicted entries to them.
    """
    shadow = cell.record.shadow
    if (cell.cls.evicts or cell.cls.selects) and not shadow.hidden:
        yield cell.finding("entries that are evicted or not read at a tight budget", "none")
    if wrong := shadow.first:
        expected = f"{wrong.expected:.6g}, as masked attention gives"
        yield cell.finding(expected, f"{wrong.actual:.6g}", wrong.step, wrong.layer, wrong.head)


def every_head_has_one_slot(cell: MethodCell) -> Findings:
    """Every K/V head of every site has its entries in exactly one slot."""
    layout, places = cell.record.method.layout, list(entries_of(cell.record.method))
    for layer in range(layout.layers):
        heads = sorted(head for place in places if place.layer == layer for head in getattr(place, "heads", ()))
        if heads != list(range(layout.kv_heads)):
            yield cell.finding(f"heads 0 to {layout.kv_heads - 1}, each in one slot", heads, layer=layer)
            return


def prefix_is_sound(cell: MethodCell) -> Findings:
    """A head stores each generated token at most once, no future token, and the whole condition."""
    for moment in cell.record.moments:
        for place, heads in moment.contents.items():
            for head, tokens in enumerate(heads):
                if rule := _broken_rule(cell.record.method, moment.step, tokens):
                    yield cell.finding(rule, tokens[0].tolist(), moment.step.index, place.layer, head)
                    return


def _broken_rule(method: Method, step: Step, tokens: torch.Tensor) -> str:
    ordered = tokens.long().sort(-1).values
    if ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any():
        return "each token once"
    if getattr(method, "keep_condition", True) and not ((tokens == -1).sum(-1) == method.layout.condition[0]).all():
        return "all of the condition"
    past = not tokens.numel() or bool(tokens.min() >= HIDDEN and tokens.max() < step.first + max(1, step.count))
    return "" if past else "tokens that have been generated"


# -- bytes ------------------------------------------------------------------------------------------------------------
def _declared(method: Method) -> dict[Site, int]:
    """Return the entries that the method declares for each of its sites, over all heads of one row."""
    return declared_entries(method, method.layout, dict.fromkeys(Site(place.stack, place.layer) for place in entries_of(method)))


def fullest_entries(ran: KitRun) -> dict[Place, int]:
    """Return the most entries of all heads of a site in any step, in one row."""
    return {place: max(sum(moment.during[place]) for moment in ran.moments) for place in entries_of(ran.method)}


def _bytes(ran: KitRun, entries: int) -> int:
    """Return the bytes of ``entries`` in each row, including the codec's data per site."""
    layout, codec = ran.method.layout, ran.memory.codec
    shape, sites = (layout.head_dim, layout.dtype), len(_declared(ran.method))
    shared = sites * layout.kv_heads * codec.shared_bytes(*shape, layout.longest_condition + layout.visual)
    return layout.rows * (entries * codec.pair_bytes(*shape) + shared)


def bytes_are_declared(cell: MethodCell) -> Findings:
    """The method allocates exactly the bytes that it declares."""
    ran = cell.record
    declared = _bytes(ran, sum(_declared(ran.method).values()))
    if (allocated := ran.memory.nbytes("slots")) != declared:
        yield cell.finding(f"{declared} B in slots, as declared", f"{allocated} B")
    method, layout = ran.method, ran.method.layout
    if layout.scales:
        return
    largest = max(_declared(method).values(), default=0)  # entries of a slot, which the workspace holds decoded
    if isinstance(method, HeadGroups):
        largest = max(group.layout.kv_heads * max(bank.capacity for bank in group.method.banks) for group in method.groups)
    needed = 0 if ran.memory.codec.exact else 2 * layout.rows * largest * layout.head_dim * layout.dtype.itemsize
    if (allocated := ran.memory.nbytes("workspace")) != needed:
        yield cell.finding(f"{needed} B in the workspace", f"{allocated} B")


def declared_is_used(cell: MethodCell) -> Findings:
    """Every slot is full in some step, so that nothing is allocated in vain."""
    method = cell.record.method
    if cell.cls.evicts and not isinstance(method, HeadGroups | PerHead) and not hasattr(method, "B"):
        return
    fullest = fullest_entries(cell.record)
    for site, declared in _declared(method).items():
        used = sum(entries for place, entries in fullest.items() if (place.stack, place.layer) == site)
        if used != declared:
            yield cell.finding(f"{declared} entries of all heads at the fullest step, as declared", used, layer=site.layer)
            return


def live_bytes_are_counted(cell: MethodCell) -> Findings:
    """The reported live bytes equal the bytes of the fullest step."""
    ran = cell.record
    at_once = max(sum(map(sum, moment.during.values())) for moment in ran.moments)
    expected = _bytes(ran, at_once if ran.method.layout.scales else sum(fullest_entries(ran).values()))
    if (counted := ran.method.logical_bytes) != expected or counted > ran.memory.nbytes("slots"):
        yield cell.finding(f"{expected} B live at the fullest step", f"{counted} B")


def slots_are_live(cell: MethodCell) -> Findings:
    """Bytes in slots are bytes of live keys and values: a masked method stores every token."""
    ran = cell.record
    if (allocated := ran.memory.nbytes("slots")) != (live := ran.method.logical_bytes):
        yield cell.finding(f"{allocated} B live, as allocated in slots", f"{live} B; use a kind of memory that it counts, such as state")


def all_memory_is_counted(cell: MethodCell) -> Findings:
    """Every tensor that the method keeps is allocated from ``memory``, which counts its bytes."""
    for name, shape in outside(cell.record.method, cell.record.memory):
        yield cell.finding("only tensors from memory", f"{name}, of shape {shape}, from elsewhere")


# -- storage ----------------------------------------------------------------------------------------------------------
def dead_is_never_read(cell: MethodCell) -> Findings:
    """Storage beyond the live entries is never read: NaN in it changes no bit."""
    watch = Poison()
    ran = cell.run(cell.tight(), watch)
    if not watch.spoiled:
        yield cell.finding("storage beyond the live entries", "none")
    yield from differences(cell, cell.record, ran, "the untouched storage's")


def second_generation_repeats(cell: KitCell) -> Findings:
    """A second generation in the same memory gives the same bits, for any random state of torch."""
    memory = cell.memory()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        first, before = cell.run(cell.tight(), memory=memory), memory.pointers()
        torch.manual_seed(321)
        second, after = cell.run(cell.tight(), memory=memory), memory.pointers()
    yield from differences(cell, first, second, "the first generation's")
    if moved := sorted(name for name in after.keys() | before.keys() if after.get(name) != before.get(name)):
        yield cell.finding("the storage of the first generation", f"{', '.join(moved)} elsewhere in the second")


# -- how a step runs --------------------------------------------------------------------------------------------------
def timed_equals_fidelity(cell: MethodCell) -> Findings:
    """The fidelity pass, which also returns logits, generates the same tokens as the timed pass."""
    timed = cell.run(cell.tight(), bare=True, with_logits=False)
    yield from differences(cell, cell.record, timed, "the fidelity pass's")


@functools.cache
def captured(cell: MethodCell) -> tuple[KitRun, Capture]:
    """Return the reference run, repeated in the same memory with a capture of ``passes``."""
    method = cell.tight()
    with capturing(cell.passes, refuses=method.capturable) as capture:
        ran = cell.run(method, capture, memory=cell.record.memory, bare=True)
    return ran, capture


def nothing_is_read_on_the_host(cell: MethodCell) -> Findings:
    """No step reads on the host or has a value-dependent shape, unless ``capturable`` is false."""
    if not cell.tight().capturable:
        raise Unsupported(DECIDES)
    try:
        ran, capture = captured(cell)
    except NotCapturable as error:
        yield cell.finding("no read on the host, or capturable = False", error)
        return
    if min(map(len, capture.log.values())) <= 5:
        yield cell.finding("the operations of every step", "next to none")
    yield from differences(cell, cell.record, ran, "the first generation's")


def graph_is_eager(cell: KitCell) -> Findings:
    """Captured steps replay to the eager tokens, for other samples too, unless ``capturable`` is false."""
    if not cell.tight().capturable:
        raise Unsupported(DECIDES)
    memory = capture_on_cpu(cell.memory(), cell.parameters)
    for seeds in (cell.seeds, cell.other_seeds):
        expected = cell.run(cell.tight(), seeds=seeds, bare=True)
        try:
            replayed = cell.run(cell.tight(), seeds=seeds, memory=memory, bare=True)
        except Unsupported as error:
            yield cell.finding("steps that can be captured, or capturable = False", error.message, seeds=seeds)
            return
        yield from differences(cell, expected, replayed, "the eager steps' (see graph_key)", seeds=seeds)


def samples_are_the_same_in_another_order(cell: MethodCell) -> Findings:
    """A sample has the same outputs, entries and tokens in a smaller batch in another order."""
    if not cell.tight().capturable:
        raise Unsupported(DECIDES)
    if cell.layout.paradigm == "masked" and not cell.memory().codec.exact:
        raise Unsupported("A difference in rounding by the codec changes a sample.")
    full, rows = cell.record, [2, 0]
    part = cell.run(cell.tight(), seeds=[cell.seeds[row] for row in rows])
    if full.tokens is not None and part.tokens is not None:
        if (largest := float((part.tokens - full.tokens[rows]).abs().max())) > 1e-4:
            yield cell.finding("the tokens of a batch of three", f"a difference of {largest:.3g}")
        return
    among = KitRun(full.method, full.memory, {where: out[rows] for where, out in full.answers.items()})
    yield from differences(cell, among, part, "the batch of three's", 1e-6)
    for mine, theirs in zip(part.moments, full.moments, strict=True):
        for place, heads in mine.contents.items():
            for head, tokens in enumerate(heads):
                if not torch.equal(tokens.sort(-1).values, theirs.contents[place][head][rows].sort(-1).values):
                    yield cell.finding("the entries kept in a batch of three", "different ones", mine.step.index, place.layer, head)
                    return


# -- settings, types and parameters -----------------------------------------------------------------------------------
def settings_are_unchanged(cell: KitCell) -> Findings:
    """A generation changes no setting of torch or the process, such as TF32 or the folder, not even for a step."""
    watch = SettingsWatch()
    with settings_restored() as outside:
        ran = cell.run(cell.tight(), watch, bare=True)
    if changes := dict.fromkeys((*ran.changes, *outside, *watch.changes)):
        yield cell.finding("unchanged settings of torch and the process", "; ".join(changes))


def bf16_runs(cell: Cell) -> Findings:
    """In bf16 the method runs, its logits are finite, and its slots take half the bytes."""
    if cell.codec != "native":
        raise Unsupported("The bytes of a codec do not depend on the type of the model.")
    allocated, logits, memory = cell.record.memory.nbytes("slots"), list[torch.Tensor](), cell.memory()
    rounded = copy.deepcopy(cell.model).bfloat16()
    rounded.generate(torch.tensor(SEEDS), list(SEEDS), cell.tight(), SAMPLING, memory, see=lambda _, step: logits.append(step.clone()))
    if not all(bool(step.isfinite().all()) for step in logits):
        yield cell.finding("finite logits in bf16", "NaN or infinity")
    if 2 * memory.nbytes("slots") != allocated:
        yield cell.finding(f"{allocated // 2} B in slots in bf16, half of those in fp32", f"{memory.nbytes('slots')} B")


def wrong_parameters_are_refused(cell: MethodCell) -> Findings:
    """An unknown parameter, a wrong type and a negative budget raise an error of cachemark."""
    wrong: dict[str, Any] = {"no_such_parameter": 1}
    wrong |= {parameter: {} for parameter, value in cell.tight().parameters().items() if type(value) in (int, str)}
    cases = [*wrong.items(), *([("B", -1)] if "B" in cell.tight().parameters() else [])]
    for parameter, value in cases:
        try:
            method = cell.cls.build({parameter: value})
            if parameter == "B" and value == -1:
                method.resolve(cell.layout)
        except CachemarkError:
            continue
        except Exception as error:
            yield cell.finding(f"BadParameter for {parameter} = {value!r}", f"{type(error).__name__}: {error}")
        else:
            yield cell.finding(f"BadParameter for {parameter} = {value!r}", "it is accepted")
