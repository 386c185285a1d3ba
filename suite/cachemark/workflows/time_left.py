"""The remaining time of a run: stored seconds of each case, else its images at the pace so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.result import Outcome
from ..core.spec import MAX_BATCH
from ..plans.expand import Planned
from ..plans.price import batches

EARLY = 0.05  # fraction of a case before which its pace is ignored: a process warms up


def generated(planned: Planned) -> list[tuple[int, float]]:
    """Return (images per batch, number of such batches) for everything that a case generates."""
    return batches(planned, forced=1.0)


@dataclass
class _CaseProgress:
    """A case that has not ended: ``stored`` seconds, ``images`` in all and ``done``, and two times."""

    model: str
    searched: bool
    stored: float | None
    images: float
    began: float | None = None
    last: float = 0.0
    done: float = 0.0

    @property
    def fraction(self) -> float:
        """Fraction that is done, below 1 while the case runs: it may generate a little more than was counted."""
        return min(0.99, self.done / self.images) if self.images else 0.0


class TimeLeft:
    """An estimate that follows a run; its methods may be called from several threads, one per device.

    ``planned``: the cases to run; ``stored(key)``: the seconds that a case took before, or None.
    """

    def __init__(
        self, planned: Sequence[Planned] = (), stored: Callable[[str], float | None] = lambda key: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._lock, self._at_once = clock, threading.RLock(), 1
        self._left = {
            each.case.key: _CaseProgress(each.case.model, MAX_BATCH in each.case.evaluation, stored(each.case.key),
                                         sum(size * times for size, times in generated(each)))
            for each in planned if not each.unsupported_reason}
        self._ended: list[tuple[str, float, float]] = []  # model, images and seconds of each case

    def started(self, planned: Planned) -> None:
        """Note that a case starts, for the first time or again."""
        with self._lock:
            if case := self._left.get(planned.case.key):
                case.began = case.last = self._clock()
                case.done = 0.0
                self._at_once = max(self._at_once, sum(each.began is not None for each in self._left.values()))

    def advanced(self, planned: Planned, images: int) -> None:
        """Note that a case has generated another batch of ``images``."""
        with self._lock:
            if case := self._left.get(planned.case.key):
                case.done += images
                case.last = self._clock()

    def ended(self, outcome: Outcome) -> None:
        """Note that a case has ended."""
        with self._lock:
            case = self._left.pop(outcome.case.key, None)
            if outcome.ok and case is not None and case.began is not None:
                self._ended.append((case.model, case.images, self._clock() - case.began))

    def fraction(self, key: str) -> float:
        """Return the fraction of a case that is done: 0 before it starts."""
        with self._lock:
            return self._left[key].fraction if key in self._left else 0.0

    def seconds(self) -> float | None:
        """Return the seconds until all cases have ended; None if unknown, or for a batch search."""
        with self._lock:
            paces = self._paces()
            remaining = [None if case.searched else self._remaining(case, paces) for case in self._left.values()]
            estimates = [seconds for seconds in remaining if seconds is not None]
            return sum(estimates) / self._at_once if remaining and len(estimates) == len(remaining) else None

    def _paces(self) -> dict[str, float]:
        """Return the seconds per image of each model, and of all together under the empty name."""
        running = [(case.model, case.done, case.last - case.began) for case in self._left.values()
                   if case.began is not None and case.fraction >= EARLY]
        totals: dict[str, tuple[float, float]] = {}
        for model, images, seconds in [*self._ended, *running]:
            for name in (model, ""):
                all_images, all_seconds = totals.get(name, (0.0, 0.0))
                totals[name] = all_images + images, all_seconds + seconds
        return {name: seconds / images for name, (images, seconds) in totals.items() if images}

    def _remaining(self, case: _CaseProgress, paces: dict[str, float]) -> float | None:
        """Return the seconds that a case still takes, or None."""
        pace = paces.get(case.model, paces.get(""))
        total = case.stored if case.stored is not None else None if pace is None else case.images * pace
        if case.began is None:
            return total
        if case.stored is None and case.fraction >= EARLY:
            total = (case.last - case.began) / case.fraction
        return None if total is None else max(total - (self._clock() - case.began), 0.0)
