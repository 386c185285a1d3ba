"""The inspection of a measured method: the generation that was timed, once more, with what it does held against what it says.

It looks at no name and at no source. Work is counted as it is dispatched, tensors are looked for among all that are alive, and what is
asked of Python is heard; ADR 23 says why these, and what they cannot see.
"""

from __future__ import annotations

import gc
import random
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import FrameType

import numpy
import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.attention import FUSED_MASS_KERNEL, fused, mass_kernel
from ..cache.codec import NATIVE
from ..cache.layout import Layout, Site, Step, raster_steps, scale_steps
from ..cache.masked_layout import MaskedLayout
from ..contract.heads import HeadGroups
from ..contract.method import Method
from ..core.spec import Sampling
from ..machine.memory import exhausted
from ..machine.shared_state import SharedState
from ..models.protocol import Loaded
from ..roofline.masked_flops import masked_ops
from .audit import absent, frames_of, listening, unheard
from .capture import as_written
from .driver import Onlooker, watched
from .findings import Flaw
from .reachable import outside, place
from .work_counter import DispatchedWork, WorkCounter

NEAR = 0.02  # share by which work may differ from what is said
SAID = 300  # letters of an error
NAMED = 5  # of what was found in one respect
Own = Callable[[FrameType], bool]


@dataclass(frozen=True)
class Inspected:
    """A measured case: ``method`` and ``memory`` make both anew, ``full`` is the full cache of its model. ``labels`` and ``seeds`` are
    those of the batch that was timed, ``fresh`` as many seeds that nobody has seen. ``shared``: the model is of the method's own plug-in,
    so that calls of that have nothing to say. ``alive`` is called behind each generation and behind each pass that is watched: an
    inspection takes long, and who waits for it hears nothing else."""

    loaded: Loaded
    method: Callable[[], Method]
    full: Callable[[], Method]
    memory: Callable[[], Memory]
    sampling: Sampling
    labels: Sequence[int]
    seeds: Sequence[int]
    fresh: Sequence[int]
    device: str = "cpu"
    shared: bool = False
    alive: Callable[[int], None] = lambda images: None

    def layout(self, seeds: Sequence[int]) -> Layout:
        """The shape of its generation at these seeds."""
        asked = (self.labels,) if self.loaded.prompted else ()
        return self.loaded.generator.layout(seeds, self.sampling, *asked)

    def generate(self, method: Method, memory: Memory, seeds: Sequence[int]) -> Tensor:
        """Tokens at these seeds."""
        labels = torch.tensor(list(self.labels), device=self.device)
        tokens = self.loaded.generator.generate(labels, list(seeds), method, self.sampling, memory)
        self.alive(0)
        return tokens


def inspect(case: Inspected) -> list[Flaw]:
    """Everything that the method does and does not say, each once. An error ends it; :func:`broken_off` says whose it is."""
    own = frames_of(type(case.method()))
    with torch.inference_mode(), as_written():
        found = list(_found(case, own))
    return list({flaw.expected + flaw.found: flaw for flaw in found}.values())


def broken_off(error: BaseException, method: type) -> Flaw | None:
    """The finding where an error of the method's own code ends an inspection. None where none of that was running, so that the error is of
    our instruments, and where memory ran out; of that the method's own ``raise MemoryError`` is no proof."""
    own = frames_of(method)
    running = [own(frame) for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not any(running) or (exhausted(error) and not (isinstance(error, MemoryError) and running[-1])):
        return None
    return Flaw("another generation like the one that was timed", first_line(error))


def first_line(error: BaseException) -> str:
    """Kind of an error and the first line of what it says, also where it cannot say anything."""
    return (traceback.format_exception_only(error)[-1].strip().splitlines() or [type(error).__name__])[0][:SAID]


def _found(case: Inspected, own: Own) -> Iterator[Flaw]:
    full, met = _full(case, own)
    known = _alive()
    timed, fresh = _watch(case, case.seeds, own), _watch(case, case.fresh, own)
    for shape in _left(known, {place(sight.tokens) for sight in (timed, fresh)}):
        yield Flaw("every tensor that it keeps from memory", f"one of shape {shape}, which outlives the generation")
    for sight in (timed, fresh):
        yield from sight.flaws
    yield from _work(case, timed.work, full, case.seeds)
    if abs(timed.work.flops - fresh.work.flops) > NEAR * fresh.work.flops and case.method().capturable:
        yield Flaw(f"the work that it does at seeds that nobody has seen, {fresh.work.flops:,} FLOPs",
                   f"{timed.work.flops:,} at those that were timed")
    if case.device == "cpu" and not torch.equal(*(case.generate(case.method(), case.memory(), case.seeds) for _ in range(2))):
        yield Flaw("the same tokens at the same seeds", "others")
    if timed.work.drawn and not case.shared:
        yield Flaw("no random numbers but those that belong to the sample", f"it calls {', '.join(sorted(timed.work.drawn))}")
    if timed.work.streams:
        yield Flaw("all work on the stream whose time is taken", f"{timed.work.streams} operations on another one")
    if met and not case.shared:
        yield Flaw("the full cache without any part of the method in it", f"it calls {', '.join(sorted(met)[:3])}")


# -- a generation that is watched ---------------------------------------------------------------------------------------
@dataclass
class Sight:
    """A generation: its tokens, its work and what was wrong in it."""

    tokens: Tensor
    work: DispatchedWork
    flaws: list[Flaw]


@dataclass
class Pulse(Onlooker):
    """Says behind every pass that the inspection goes on."""

    alive: Callable[[int], None]

    def settled(self, method: Method, step: Step) -> None:
        self.alive(0)


@dataclass
class Looker(Onlooker):
    """Looks at what a pass answers, at what is live behind it, and, behind the first, second, fourth, eighth … pass, at what the process
    shares and at what is reached from the method."""

    memory: Memory
    state: SharedState
    flaws: list[Flaw] = field(default_factory=list)
    passes: int = 0

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        if type(out) is not Tensor or out.is_meta:
            self._note("tensors that are there", f"a {type(out).__name__} that is computed later", step)

    def settled(self, method: Method, step: Step) -> None:
        self.passes += 1
        for one in (method, *(group.method for group in method.groups)) if isinstance(method, HeadGroups) else (method,):
            self._entries(one, step)
        if not self.passes & (self.passes - 1):
            self.examine(method, step)

    def examine(self, method: Method, step: Step | None = None) -> None:
        """Look at all that does not need a look in every pass."""
        with unheard():  # the method may be among the callers, where the model is of its plug-in
            changes = self.state.changes()
        for change in changes:
            self._note("the process as it was, during a generation too", str(change), step)
        for name, shape in outside(method, self.memory):
            self._note("every tensor that it keeps from memory", f"{name}, of shape {shape}, from elsewhere", step)

    def _entries(self, method: Method, step: Step) -> None:
        budget = getattr(method, "B", None)
        if not isinstance(budget, int) or isinstance(method.layout, MaskedLayout):
            return
        most = budget + (method.layout.longest_condition if getattr(method, "keep_condition", True) else 0)
        for site, slot in method.slots.items():
            if max(slot.live, default=0) > most:
                self._note(f"at most {most} live entries behind a pass, as its budget says", "more", step, site.layer)

    def _note(self, expected: str, found: str, step: Step | None, layer: int | None = None) -> None:
        alike = [flaw.found for flaw in self.flaws if flaw.expected == expected]
        if found not in alike and len(alike) < NAMED:
            self.flaws.append(Flaw(expected, found, step=None if step is None else step.index, layer=layer))


def _watch(case: Inspected, seeds: Sequence[int], own: Own) -> Sight:
    """One generation at these seeds, with all that can be seen of it."""
    memory, counter = case.memory(), WorkCounter(case.loaded.parameters, own, case.device)
    numbers = _generators(case.device)
    with ExitStack() as around:
        around.enter_context(fused(case.device))
        said = around.enter_context(listening(own))
        work = around.enter_context(counter.counting())
        looker = Looker(memory, SharedState())
        method = watched(case.method(), looker, counter, Pulse(case.alive))
        tokens = case.generate(method, memory, seeds)
        looker.examine(method)
    flaws = looker.flaws
    flaws += [Flaw("work, files and objects of its own alone", f"it {what} ({event})") for what, event in said.items()]
    if _generators(case.device) != numbers:
        flaws.append(Flaw("no random numbers but those that belong to the sample", "a generator of the process has moved on"))
    return Sight(tokens, work, flaws)


def _full(case: Inspected, own: Own) -> tuple[DispatchedWork, set[str]]:
    """The work of the full cache at the seeds that were timed, and what of the method was called meanwhile."""
    counter = WorkCounter(case.loaded.parameters, own, case.device)

    def once() -> None:
        case.generate(watched(case.full(), Pulse(case.alive)), Memory(case.device), case.seeds)

    with fused(case.device):
        with absent(own) as met:
            once()
        with counter.counting() as work:
            once()
    return work, met


def _generators(device: str) -> tuple[object, ...]:
    """The state of the random generators that everybody shares, and of the device's own."""
    of_device = torch.cuda.get_rng_state(device).numpy().tobytes() if torch.device(device).type == "cuda" else b""
    return torch.get_rng_state().numpy().tobytes(), of_device, random.getstate(), repr(numpy.random.get_state())


def _tensors() -> list[Tensor]:
    return [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]


def _alive() -> dict[int, weakref.ref[Tensor]]:
    """Every tensor of the process, by its number, which a later one may have again."""
    return {id(tensor): weakref.ref(tensor) for tensor in _tensors()}


def _left(known: dict[int, weakref.ref[Tensor]], owned: set[int]) -> list[tuple[int, ...]]:
    """Shapes of the tensors that are new, in storage that is neither ``owned`` nor that of an older one."""
    gc.collect()
    now = _tensors()
    old = {place(tensor) for tensor in now if id(tensor) in known and known[id(tensor)]() is tensor}
    return sorted({tuple(tensor.shape) for tensor in now if tensor.numel() and place(tensor) not in old | owned | {0}})


# -- what it says on paper ----------------------------------------------------------------------------------------------
def _work(case: Inspected, done: DispatchedWork, full: DispatchedWork, seeds: Sequence[int]) -> Iterator[Flaw]:
    """Work that differs from what the method says of itself."""
    method, layout = case.method(), case.layout(seeds)
    if isinstance(layout, MaskedLayout):
        method.resolve(layout)
        said = sum(op.flops * op.times for op in masked_ops(method, layout, 0, 0, NATIVE))
        yield from _apart("the FLOPs of the tokens and layers that it says to compute", said, said, done.flops)
        return
    if done.weights < (1 - NEAR) * full.weights:
        yield Flaw(f"products with the model's weights as in the full cache, {full.weights:,} FLOPs", f"{done.weights:,}: tokens or layers "
                   "are left out")
    if method.needs_mass and mass_kernel(case.device) == FUSED_MASS_KERNEL:  # a kernel of ours, which dispatches nothing that is counted
        return
    shortest = replace(layout, condition=(min(layout.condition),) * len(layout.condition))
    least, most = (_attention(case.method(), one) for one in (shortest, layout))
    yield from _apart("the FLOPs of attending to as many entries as it says", least[0], sum(most), done.attend)


def _apart(what: str, least: int, most: int, found: int) -> Iterator[Flaw]:
    if found < (1 - NEAR) * least:
        yield Flaw(f"{what}, {least:,}", f"{found:,}: some of it is not done, or not where its time is taken")
    elif found > (1 + NEAR) * most:
        yield Flaw(f"{what}, {most:,}", f"{found:,}: it reads more than it says")


def _attention(method: Method, layout: Layout) -> tuple[int, int]:
    """FLOPs of attention over all passes and layers of a generation, and those of the method's own products beside it."""
    method.resolve(layout)
    steps, wide = scale_steps(layout) if layout.scales else raster_steps(layout), layout.heads // layout.kv_heads * layout.head_dim
    attended = own = 0
    for step in steps:
        fed = layout.rows * (step.count or layout.longest_condition)
        for layer in range(layout.layers):
            site = Site("decoder", layer)
            attended += 4 * fed * wide * method.attended_by_heads(layout, site, step)
            own += 2 * layout.rows * method.overhead(layout, site, step).products
    return attended, own
