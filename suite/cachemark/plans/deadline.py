"""Runs with a deadline: the order of cases, and which of them can still finish."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from itertools import groupby

from ..core.result import Outcome
from .planned import Prepared

LAST = 10**6  # the turn of reference rows, which follow all candidates
TRUSTED = 1.0  # a case is never expected to take less than its price


class Deadline:
    """Admits cases that can finish in time.

    ``seconds`` from now; ``price(planned)`` returns seconds, and whether they were measured before; ``startup`` are seconds that a process
    may need before its first case."""

    def __init__(
        self, seconds: float, price: Callable[[Prepared], tuple[float, bool]], *, startup: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._price, self._startup = clock, price, startup
        self._end = clock() + seconds
        self._ratios: list[float] = []
        self._lock = threading.Lock()

    def admit(self, planned: Prepared, running: bool = False) -> str:
        """Return the reason why the case may not start, in a new or ``running`` process, or an empty text."""
        expected, remaining = self.expected(planned) + (0.0 if running else self._startup), self._end - self._clock()
        if expected <= remaining:
            return ""
        return f"It was not started: it takes about {expected:.0f} s, and {max(remaining, 0):.0f} s were left before the deadline."

    def expected(self, planned: Prepared) -> float:
        """Return the seconds of a case: measured, else estimated and corrected by the median ratio so far."""
        seconds, measured = self._price(planned)
        with self._lock:
            ratio = statistics.median(self._ratios) if self._ratios and not measured else 1.0
        return seconds * max(ratio, TRUSTED)

    def ended(self, planned: Prepared, outcome: Outcome) -> None:
        """Update the ratio by a case that was estimated."""
        seconds, measured = self._price(planned)
        if outcome.ok and not measured and seconds > 0:
            with self._lock:
                self._ratios.append(outcome.seconds / seconds)


def breadth_first(planned: Sequence[Prepared], trial: str) -> list[list[Prepared]]:
    """Return groups of cases in the order of a run with a deadline.

    By priority; then the full cache and first candidate of every configuration before any second candidate; fidelity references last.
    Successive cases of one model share a process."""
    rounds: dict[tuple[str, str], int] = {}

    def turn(each: Prepared) -> int:
        if each.case.role != "candidate":
            return 0 if each.case.role == "baseline" else LAST
        cell = each.case.model, each.case.cell
        rounds[cell] = rounds.get(cell, -1) + 1
        return rounds[cell]

    return _groups(sorted(planned, key=lambda each: (each.priority, turn(each))), trial)


def groups(planned: Sequence[Prepared], trial: str) -> list[list[Prepared]]:
    """Return groups of successive cases of one model, weights and dtype, or single cases.

    Cases without plug-ins come first, then cases with equal plug-ins: a process with a plug-in runs no case that does not need it."""
    needs = list(dict.fromkeys(each.needs for each in planned))
    return [sorted(group, key=lambda each: (len(each.needs), needs.index(each.needs))) for group in _groups(planned, trial)]


def _groups(planned: Sequence[Prepared], trial: str) -> list[list[Prepared]]:
    if trial == "case":
        return [[each] for each in planned]
    return [list(group) for _, group in groupby(planned, key=lambda p: (p.case.model, p.request))]
