"""The devices of this machine: one trial at a time on each that does not invalidate them."""

from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from ...core.errors import Infrastructure
from ...core.limits import Rates
from ...core.result import Environment, Status
from ...machine.affinity import near, processors
from ...machine.environment import environment
from ...machine.gpu import Gpu, chosen, first, gpus, locked
from ...machine.lease import lease
from ...machine.monitor import Watch
from ...machine.rates import rates
from ...plans.planned import Prepared
from ..identity import identify
from ..request import Task, TrialRequest
from ..supervisor import Admit, Advanced, Finished, Started, always, run_trials, unheard, unmeasured

REJECTS = 3  # a device with so many invalidated cases gets no more
REDOS = 3  # times that an invalidated case or pair is measured again

Part = tuple[Sequence[Prepared], TrialRequest]  # a group of cases, and how it is run
Groups = Sequence[Sequence[Prepared]]  # of cases: each group runs in a separate process


class Executor(Protocol):
    """Runs groups of cases, each group in a process of its own.

    ``notes``: lines about its devices, to print.
    """

    notes: Sequence[str]

    def environment(self, device: str, threads: int) -> Environment:
        """Return machine and software of trials."""

    def rates(self, device: str, threads: int, dtypes: Iterable[str]) -> dict[str, Rates]:
        """Return measured rates of the device by dtype; empty if they cannot be measured."""

    def run(
        self, groups: Groups, request: TrialRequest, started: Started, admit: Admit = always, advanced: Advanced = unheard
    ) -> Iterator[Finished]:
        """Yield every case once, as it ends. The callbacks may be called from other threads."""

    def identify(self, request: TrialRequest, device: str) -> tuple[Environment, dict[str, Any]]:
        """Return environment and code identity of a side, where its trials run."""

    def in_turn(self, parts: Sequence[Part]) -> list[list[Finished]]:
        """Run groups of cases on one device, each in its own process. Only one computes at a time."""


def alternated(trials: Sequence[Generator[Finished | None]]) -> list[list[Finished]]:
    """Return the cases of each trial; a trial that yields None waits for one step of each of the others."""
    results: list[list[Finished]] = [[] for _ in trials]
    running = deque(zip(trials, results, strict=True))
    try:
        while running:
            trial, finished = running.popleft()
            for case in trial:
                if case is None:
                    running.append((trial, finished))
                    break
                finished.append(case)
    finally:
        for trial in trials:
            trial.close()  # ends its process
    return results


class Place(NamedTuple):
    """A slot for one trial at a time, on these processors and the watched device."""

    cpus: tuple[int, ...] = ()
    watch: Watch | None = None

    def request(self, request: TrialRequest) -> TrialRequest:
        """Return the request of a trial restricted to this slot."""
        return replace(request, cpus=self.cpus, gpu=self.watch.gpu.uuid if self.watch else "")


class _Stopped(BaseException):
    """The run ends: cases that are not finished are dropped."""


@dataclass
class Local:
    """Executor over ``places``. It repeats a case that its device invalidated, elsewhere if possible."""

    places: Sequence[Place] = (Place(),)
    notes: Sequence[str] = ()  # devices that cannot be used, each with the reason
    _left: deque[list[Prepared]] = field(default_factory=deque)
    _rejected: dict[str, Finished] = field(default_factory=dict)
    _attempts: Counter[str] = field(default_factory=Counter)
    _rejects: Counter[int] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)
    _busy: dict[int, int] = field(default_factory=dict)  # the most places that ran at once during the present case, by running place
    _turn: int = 0

    @property
    def gpu(self) -> Gpu | None:
        """The device, or one of several of its model; None for a CPU."""
        watch = self.places[0].watch
        return watch.gpu if watch else None

    def environment(self, device: str, threads: int) -> Environment:
        return environment(device, threads, self.gpu)

    def rates(self, device: str, threads: int, dtypes: Iterable[str]) -> dict[str, Rates]:
        return rates(device, threads, dtypes, self.gpu.uuid if self.gpu else "")

    def run(
        self, groups: Groups, request: TrialRequest, started: Started, admit: Admit = always, advanced: Advanced = unheard
    ) -> Iterator[Finished]:
        """Yield every case of the groups once; cases without a remaining device are not reached."""
        self._left, self._over = deque(list(group) for group in groups), threading.Event()

        def admitted(planned: Prepared, running: bool = False) -> str:
            if self._over.is_set():
                raise _Stopped
            return admit(planned, running)

        while self._left and (healthy := [n for n in range(len(self.places)) if self._rejects[n] < REJECTS]):
            lanes = [self._lane(number, request, started, admitted, advanced) for number in healthy]
            yield from lanes[0] if len(lanes) == 1 else self._together(lanes)
        for planned in (p for group in self._left for p in group):
            yield self._rejected.get(planned.case.key) or unmeasured(planned, Status.NOT_REACHED, _NO_DEVICE)

    def identify(self, request: TrialRequest, device: str) -> tuple[Environment, dict[str, Any]]:
        return identify(self._next_place.request(request), device)

    def in_turn(self, parts: Sequence[Part]) -> list[list[Finished]]:
        """Run every group once in one slot. After an invalidated case, the next call uses the next slot.

        On a CPU, timed groups alternate after each generation, so that a change of the machine's speed affects all of them. GPUs run one
        group after the other, since memory and monitoring belong to one process.
        """
        place = self._next_place
        trials = [run_trials(group, replace(place.request(request), pauses=place.watch is None and request.task is Task.TIMES),
                             lambda planned: None, watch=place.watch) for group, request in parts]
        results = alternated(trials)
        self._turn += any(finished.invalidated for group in results for finished in group)
        return results

    @property
    def _next_place(self) -> Place:
        return self.places[self._turn % len(self.places)]

    def _lane(self, number: int, request: TrialRequest, started: Started, admit: Admit, advanced: Advanced) -> Iterator[Finished]:
        """Yield cases that one slot finishes, until none is left or its device has invalidated too many."""
        place = self.places[number]
        while self._rejects[number] < REJECTS:
            with self._lock:
                remaining = self._left.popleft() if self._left else []
            if not remaining:
                return
            cases = run_trials(list(remaining), place.request(request), started, watch=place.watch, admit=admit, advanced=advanced)
            for finished in self._counting(number, filter(None, cases)):
                planned = remaining.pop(0)
                if not finished.invalidated:
                    yield finished
                    continue
                self._rejects[number] += REJECTS if finished.lost else 1
                self._attempts[planned.case.key] += 1
                if self._attempts[planned.case.key] > REDOS:
                    yield finished
                else:
                    with self._lock:
                        self._rejected[planned.case.key] = finished
                        self._left.append([planned])
                if self._rejects[number] >= REJECTS:
                    break
            if remaining:
                with self._lock:
                    self._left.appendleft(remaining)

    def _counting(self, number: int, cases: Iterator[Finished]) -> Iterator[Finished]:
        """Yield the cases of a slot; with several slots, record how many were busy at once."""
        if len(self.places) == 1:
            yield from cases
            return
        try:
            with self._lock:
                self._busy[number] = 0
                self._busy |= {place: max(most, len(self._busy)) for place, most in self._busy.items()}
            for finished in cases:
                with self._lock:
                    facts = replace(finished.outcome.facts, busy_places=[self._busy[number], len(self.places)])
                    self._busy[number] = len(self._busy)
                yield finished._replace(outcome=replace(finished.outcome, facts=facts))
        finally:
            with self._lock:
                self._busy.pop(number, None)

    def _together(self, lanes: Sequence[Iterator[Finished]]) -> Iterator[Finished]:
        """Yield cases of several lanes in threads, which end with their current case if the reader stops."""
        ended: queue.Queue[Finished | BaseException | None] = queue.Queue()

        def pour(lane: Iterator[Finished]) -> None:
            try:
                for finished in lane:
                    ended.put(finished)
                ended.put(None)
            except _Stopped:
                ended.put(None)
            except BaseException as error:  # raised in the thread that reads
                ended.put(error)

        for lane in lanes:
            threading.Thread(target=pour, args=(lane,), daemon=True).start()
        running = len(lanes)
        try:
            while running:
                message = ended.get()
                if isinstance(message, BaseException):
                    raise message
                if message is None:
                    running -= 1
                else:
                    yield message
        finally:
            self._over.set()


_NO_DEVICE = f"No device was left: each has invalidated {REJECTS} measurements of this run or was lost."


@contextmanager
def local(
    device: str, threads: int, *, names: Sequence[str] = (), clock: int = 0, nvml: Any = None
) -> Iterator[Local]:
    """Lease devices of this machine for the block and yield an executor over them.

    ``cuda``: the GPUs of these names, by default the first free one, each with processors of its NUMA node, with clocks locked at
    ``clock`` MHz unless 0. Raises Infrastructure if a device is not available."""
    with ExitStack() as stack:
        if device == "cpu":
            if clock:
                raise Infrastructure("A CPU's clocks cannot be locked.", remedy="Leave --lock-clocks out, or give --device cuda.")
            yield Local([Place(stack.enter_context(processors(threads)))])
            return
        devices = gpus(nvml)
        leased = _leased(stack, devices, names)
        stack.enter_context(locked(leased, clock))
        cpus = near([gpu.processors() for gpu in leased], threads)
        places = [Place(own, stack.enter_context(Watch(gpu, clock))) for own, gpu in zip(cpus, leased, strict=True)]
        yield Local(places, notes=devices.left_out)


def _leased(stack: ExitStack, devices: list[Gpu], names: Sequence[str]) -> list[Gpu]:
    """Lease all devices of these names, or the first free one. They must be of one kind."""
    first(devices)
    candidates, leased, in_use = chosen(names, devices) if names else devices, [], []
    for gpu in candidates:
        by = stack.enter_context(lease(gpu.uuid))
        if by:
            in_use.append(f"{gpu.uuid} by {by}")
        else:
            leased.append(gpu)
            if not names:
                break
    if in_use and ((names and "all" not in names) or not leased):
        raise Infrastructure(f"Held by another run: {'; '.join(in_use)}.", remedy="Wait for it, or name another device with --gpu.")
    if len(kinds := sorted({gpu.kind for gpu in leased})) > 1:
        raise Infrastructure(f"One run measures on devices of one model with equal settings, not on {' and '.join(kinds)}.",
                             remedy="Name equal ones with --gpu.")
    return leased
