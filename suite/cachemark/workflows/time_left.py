"""The deadline of a run, and its remaining time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.result import Outcome
from ..core.spec import MAX_BATCH, Case
from ..plans.deadline import Deadline
from ..plans.planned import Planned, Prepared
from ..plans.price import STARTUP, batches, price
from ..store.db import Store
from ..trial.executors.local import Executor
from .session import Machine


def deadline(seconds: float, store: Store, machine: Machine, executor: Executor) -> Deadline:
    """Return a deadline in so many seconds.

    It estimates a case by its stored duration, else by its roofline time at the rates of this run.
    """
    here = executor.environment(machine.device, machine.threads)

    def priced(planned: Prepared) -> tuple[float, bool]:
        cost = price(planned, store.seconds(planned.case.key, here.machine_class))
        return cost.seconds, cost.stored

    return Deadline(seconds, priced, startup=STARTUP)


@dataclass
class _Progress:
    """Two times of a running case, and the images that it has generated."""

    began: float
    last: float
    done: float = 0.0


class TimeLeft:
    """The remaining time of a run: stored seconds of each case, else its images at the pace so far.

    ``planned``: the cases to run; ``stored(key)``: the seconds that a case took before, or None. Methods may be called from several
    threads, one per device.
    """

    def __init__(
        self, planned: Sequence[Planned] = (), stored: Callable[[str], float | None] = lambda key: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._lock, self._at_once = clock, threading.RLock(), 1
        self._left = {each.case.key: each for each in planned if not each.unsupported_reason}
        self._stored = {key: stored(key) for key in self._left}
        self._images = {key: sum(size * times for size, times in batches(each, forced=1.0)) for key, each in self._left.items()}
        self._running: dict[str, _Progress] = {}
        self._pace: dict[str, tuple[float, float]] = {}  # images and seconds of each model, and of all under the empty name

    def started(self, planned: Planned) -> None:
        """Note that a case starts, for the first time or again."""
        with self._lock:
            self._running[planned.case.key] = _Progress(self._clock(), self._clock())
            self._at_once = max(self._at_once, len(self._running))

    def advanced(self, planned: Planned, images: float) -> None:
        """Note that a case has generated another batch of ``images``."""
        with self._lock:
            now, case = self._clock(), self._running.get(planned.case.key)
            if case is None:
                return
            for name in (planned.case.model, ""):
                all_images, seconds = self._pace.get(name, (0.0, 0.0))
                self._pace[name] = all_images + images, seconds + now - case.last
            case.done, case.last = case.done + images, now

    def ended(self, outcome: Outcome) -> None:
        """Note that a case has ended."""
        with self._lock:
            key = outcome.case.key
            if outcome.ok and key in self._running and key in self._left:
                self.advanced(self._left[key], max(self._images[key] - self._running[key].done, 0.0))
            self._left.pop(key, None)
            self._running.pop(key, None)

    def fraction(self, key: str) -> float:
        """Return the fraction of a case that is done: 0 before it starts, below 1 while it runs."""
        with self._lock:
            case, images = self._running.get(key), self._images.get(key)
            return min(0.99, case.done / images) if case and images else 0.0

    def seconds(self) -> float | None:
        """Return the seconds until all cases have ended; None if unknown, or for a batch search."""
        with self._lock:
            estimates = [self._remaining(key, each.case) for key, each in self._left.items()]
            estimated = [seconds for seconds in estimates if seconds is not None]
            return sum(estimated) / self._at_once if estimated and len(estimated) == len(estimates) else None

    def _remaining(self, key: str, case: Case) -> float | None:
        images, seconds = self._pace.get(case.model) or self._pace.get("") or (0.0, 0.0)
        total = self._stored[key]
        if MAX_BATCH in case.evaluation or (total is None and not images):
            return None
        total = self._images[key] * seconds / images if total is None else total
        began = self._running[key].began if key in self._running else self._clock()
        return max(total - (self._clock() - began), 0.0)
