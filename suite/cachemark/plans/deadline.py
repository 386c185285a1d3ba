"""Runs with a deadline: the order of cases, and which of them can still finish."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from itertools import groupby

from ..core.result import Outcome
from .expand import Planned

LAST = 10**6  # the turn of what comes behind every candidate
TRUSTED = 1.0  # least share of its price that a case is expected to take; what paper overstates, it has overstated before


class Deadline:
    """Admits cases that can finish in time.

    ``seconds`` from now; ``price(planned)`` returns seconds, and whether they were measured before; ``startup`` are seconds that a process
    may need before its first case."""

    def __init__(
        self, seconds: float, price: Callable[[Planned], tuple[float, bool]], *, startup: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._price, self._startup = clock, price, startup
        self._end = clock() + seconds
        self._ratios: list[float] = []
        self._hand = threading.Lock()

    def admit(self, planned: Planned, running: bool = False) -> str:
        """Return the reason why the case may not start, in a new or ``running`` process, or an empty text."""
        expected, remaining = self.expected(planned) + (0.0 if running else self._startup), self._end - self._clock()
        if expected <= remaining:
            return ""
        return f"It was not started: it takes about {expected:.0f} s, and {max(remaining, 0):.0f} s were left before the deadline."

    def expected(self, planned: Planned) -> float:
        """Return the seconds of a case: measured, else estimated and corrected by the median ratio so far."""
        seconds, measured = self._price(planned)
        with self._hand:
            ratio = statistics.median(self._ratios) if self._ratios and not measured else 1.0
        return seconds * max(ratio, TRUSTED)

    def ended(self, planned: Planned, outcome: Outcome) -> None:
        """Update the ratio by a case that was estimated."""
        seconds, measured = self._price(planned)
        if outcome.ok and not measured and seconds > 0:
            with self._hand:
                self._ratios.append(outcome.seconds / seconds)


def breadth_first(planned: Sequence[Planned], trial: str) -> list[list[Planned]]:
    """Return groups of cases in the order of a run with a deadline.

    By priority; then the full cache and first candidate of every cell before any second candidate; reference rows of fidelity last.
    Successive cases of one model share a process."""
    turns: dict[tuple[str, str], int] = {}
    ordered = sorted(planned, key=lambda each: (each.priority, _turn(each, turns)))  # of equal ones the order stays
    return _groups(ordered, trial)


def groups(planned: Sequence[Planned], trial: str) -> list[list[Planned]]:
    """Return groups of successive cases of one model, weights and dtype, or single cases.

    Cases without plug-ins come first, then cases with equal plug-ins: a process with a plug-in runs no case that does not need it."""
    return [_by_needs(group) for group in _groups(planned, trial)]


def _by_needs(group: Sequence[Planned]) -> list[Planned]:
    first_places = list(dict.fromkeys(each.needs for each in group))
    return sorted(group, key=lambda each: (len(each.needs), first_places.index(each.needs)))


def _groups(planned: Sequence[Planned], trial: str) -> list[list[Planned]]:
    if trial == "case":
        return [[each] for each in planned]
    return [list(group) for _, group in groupby(planned, key=lambda p: (p.case.model, p.request))]


def _turn(planned: Planned, turns: dict[tuple[str, str], int]) -> int:
    """Return the round of a case in its cell: 0 for the full cache and the first candidate, then 1, …"""
    role, cell = planned.case.role, (planned.case.model, planned.case.cell)
    if role == "baseline":
        return 0
    if role != "candidate":
        return LAST
    turns[cell] = turns.get(cell, -1) + 1
    return turns[cell]
