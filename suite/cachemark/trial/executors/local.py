"""The devices of this machine: one trial at a time on each, and none on a device that invalidates them."""

from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from ...core.errors import Infrastructure
from ...core.limits import Rates
from ...core.result import Environment, Status
from ...machine.affinity import processors
from ...machine.environment import environment
from ...machine.gpu import Gpu, chosen, gpus, locked
from ...machine.lease import Register, lease
from ...machine.monitor import Watch
from ...machine.rates import rates
from ...plans.expand import Planned
from ..identity import identify
from ..request import TrialRequest
from ..supervisor import Admit, Advanced, Finished, Started, always, run_trials, unheard, unmeasured

REJECTS = 3  # invalidated cases after which a device gets no more
REDOS = 3  # times that an invalidated case or pair is measured again

Part = tuple[Sequence[Planned], TrialRequest]  # a group of cases, and how it is run
Groups = Sequence[Sequence[Planned]]  # of cases: each group in a process of its own


class Executor(Protocol):
    """Runs groups of cases, each group in a process of its own."""

    def environment(self, device: str, threads: int) -> Environment:
        """Machine and software on which trials run."""

    def rates(self, device: str, threads: int, dtypes: Iterable[str]) -> dict[str, Rates]:
        """Rates of their device at its best, by dtype; nothing where that cannot be measured."""

    def run(
        self, groups: Groups, request: TrialRequest, started: Started, admit: Admit = always, advanced: Advanced = unheard
    ) -> Iterator[Finished]:
        """Every case of the groups once, in the order in which they end. ``started`` and ``advanced`` may be called from other threads."""

    def identify(self, request: TrialRequest, device: str) -> tuple[Environment, dict[str, Any]]:
        """Environment and code identity of a side, where its trials run."""

    def in_turn(self, parts: Sequence[Part]) -> list[list[Finished]]:
        """Groups of cases, one right after the other on one device, each once and in a process of its own."""


class Place(NamedTuple):
    """A place for one trial at a time: on these processors, and on the device that is watched."""

    cpus: tuple[int, ...] = ()
    watch: Watch | None = None


class _Stopped(BaseException):
    """The run ends: whatever a lane has in hand is dropped."""


@dataclass
class Local:
    """Executor over ``places``. A case that its device has invalidated is measured again, on another device where there is one."""

    places: Sequence[Place] = (Place(),)
    _left: deque[list[Planned]] = field(default_factory=deque)
    _rejected: dict[str, Finished] = field(default_factory=dict)
    _attempts: Counter[str] = field(default_factory=Counter)
    _rejects: Counter[int] = field(default_factory=Counter)
    _hand: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)
    _turn: int = 0

    @property
    def gpu(self) -> Gpu | None:
        """The device, or one of several alike; None on a CPU."""
        watch = self.places[0].watch
        return watch.gpu if watch else None

    def environment(self, device: str, threads: int) -> Environment:
        """Machine and software of its places."""
        return environment(device, threads, self.gpu)

    def rates(self, device: str, threads: int, dtypes: Iterable[str]) -> dict[str, Rates]:
        """Rates of the device, or of one of several alike."""
        return rates(device, threads, dtypes, self.gpu.uuid if self.gpu else "")

    def run(
        self, groups: Groups, request: TrialRequest, started: Started, admit: Admit = always, advanced: Advanced = unheard
    ) -> Iterator[Finished]:
        """Every case of the groups once; what no device is left for is not reached."""
        self._left, self._over = deque(list(group) for group in groups), threading.Event()
        while self._left and (healthy := [n for n in range(len(self.places)) if self._rejects[n] < REJECTS]):
            lanes = [self._lane(number, request, started, admit, advanced) for number in healthy]
            yield from lanes[0] if len(lanes) == 1 else self._together(lanes)
        for planned in (p for group in self._left for p in group):
            yield self._rejected.get(planned.case.key) or unmeasured(planned, Status.NOT_REACHED, _NO_DEVICE)

    def identify(self, request: TrialRequest, device: str) -> tuple[Environment, dict[str, Any]]:
        """Environment and code identity of a side on the place whose turn it is."""
        return identify(_at(self._place, request), device)

    def in_turn(self, parts: Sequence[Part]) -> list[list[Finished]]:
        """Every group once, all on one place; after one whose device has invalidated a case, it is the next place's turn."""
        place = self._place
        results = [list(run_trials(group, _at(place, request), lambda planned: None, watch=place.watch)) for group, request in parts]
        self._turn += any(finished.invalidated for group in results for finished in group)
        return results

    @property
    def _place(self) -> Place:
        return self.places[self._turn % len(self.places)]

    def _lane(self, number: int, request: TrialRequest, started: Started, admit: Admit, advanced: Advanced) -> Iterator[Finished]:
        """Cases that one place finishes, until nothing is left or its device has invalidated too many."""
        place = self.places[number]
        own = _at(place, request)
        while self._rejects[number] < REJECTS and (group := self._next()):
            remaining = list(group)
            for finished in run_trials(group, own, started, watch=place.watch, admit=self._while_running(admit), advanced=advanced):
                planned = remaining.pop(0)
                if not finished.invalidated:
                    yield finished
                    continue
                self._rejects[number] += REJECTS if finished.lost else 1
                if last := self._redo(planned, finished):
                    yield last
                if self._rejects[number] >= REJECTS:
                    break
            if remaining:
                with self._hand:
                    self._left.appendleft(remaining)

    def _next(self) -> list[Planned]:
        with self._hand:
            return self._left.popleft() if self._left else []

    def _redo(self, planned: Planned, finished: Finished) -> Finished | None:
        """Put an invalidated case back, or return its last outcome where it has been measured often enough."""
        self._attempts[planned.case.key] += 1
        if self._attempts[planned.case.key] > REDOS:
            return finished
        with self._hand:
            self._rejected[planned.case.key] = finished
            self._left.append([planned])
        return None

    def _while_running(self, admit: Admit) -> Admit:
        def either(planned: Planned, running: bool = False) -> str:
            if self._over.is_set():
                raise _Stopped
            return admit(planned, running)

        return either

    def _together(self, lanes: Sequence[Iterator[Finished]]) -> Iterator[Finished]:
        """Cases that several lanes finish, each in a thread of its own. Where the reader goes away, lanes end with the case they are in."""
        ended: queue.Queue[Any] = queue.Queue()
        threads = [threading.Thread(target=_pour, args=(lane, ended), daemon=True) for lane in lanes]
        for thread in threads:
            thread.start()
        running = len(threads)
        try:
            while running:
                message = ended.get()
                if isinstance(message, Finished):
                    yield message
                elif message is None:
                    running -= 1
                else:
                    raise message
        finally:
            self._over.set()


def _at(place: Place, request: TrialRequest) -> TrialRequest:
    """The request of a trial that keeps to a place."""
    return replace(request, cpus=place.cpus, gpu=place.watch.gpu.uuid if place.watch else "")


def _pour(lane: Iterator[Finished], into: queue.Queue[Any]) -> None:
    try:
        for finished in lane:
            into.put(finished)
        into.put(None)
    except _Stopped:
        into.put(None)
    except BaseException as error:  # told to the thread that asked
        into.put(error)


_NO_DEVICE = f"No device was left: each has invalidated {REJECTS} measurements of this run or was lost."


@contextmanager
def local(
    device: str, threads: int, *, names: Sequence[str] = (), register: Register | None = None, clock: int = 0, nvml: Any = None
) -> Iterator[Local]:
    """An executor over devices of this machine, leased while the block lasts. ``cuda``: the GPUs of these names, by default the first that
    is free, their clocks held at ``clock`` MHz where that is not 0. Infrastructure where a device is not to be had."""
    with ExitStack() as stack:
        if device == "cpu":
            if clock:
                raise Infrastructure("A CPU's clocks cannot be locked.", remedy="Leave --lock-clocks out, or give --device cuda.")
            yield Local([Place(stack.enter_context(processors(threads)))])
            return
        leased = _leased(stack, gpus(nvml), names, register)
        stack.enter_context(locked(leased, clock))
        yield Local([Place((), stack.enter_context(Watch(gpu, clock))) for gpu in leased])


def _leased(stack: ExitStack, devices: list[Gpu], names: Sequence[str], register: Register | None) -> list[Gpu]:
    """All devices of these names, or the first of all that is free. Devices of different models are no place for one run."""
    if not devices:
        raise Infrastructure("The driver shows no GPU.", remedy="Look at CUDA_VISIBLE_DEVICES, or use --device cpu.")
    candidates, leased, in_use = chosen(names, devices) if names else devices, [], []
    for gpu in candidates:
        by = stack.enter_context(lease(gpu.uuid, register))
        if by:
            in_use.append(f"{gpu.uuid} by {by}")
        else:
            leased.append(gpu)
            if not names:
                break
    if in_use and ((names and "all" not in names) or not leased):
        raise Infrastructure(f"Held by another run: {'; '.join(in_use)}.", remedy="Wait for it, or name another device with --gpu.")
    if len({gpu.name for gpu in leased}) > 1:
        raise Infrastructure(f"One run measures on devices of one model, not on {' and '.join(sorted({g.name for g in leased}))}.",
                             remedy="Name those of one model with --gpu.")
    return leased
