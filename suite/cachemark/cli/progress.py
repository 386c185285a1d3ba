"""Progress of a run on standard error: one line per case, and a sign of life of long cases."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..core.result import Outcome
from ..core.spec import Case
from ..core.wording import count
from ..workflows.results import case_values
from ..workflows.session import RunWatcher
from .options import say

if TYPE_CHECKING:
    from ..plans.expand import Planned
    from ..workflows.price import TimeLeft

QUIET = 60.0  # after so many seconds without a line, the progress of the case is printed

TICK = 2.0  # seconds between two lines about an operation that takes seconds or minutes


def about(seconds: float) -> str:
    """Return a time in words: ``about 40 s``, ``about 3 min``, ``about 2.5 h``."""
    if seconds < 90:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    return f"about {seconds / 60:.0f} min" if seconds < 90 * 60 else f"about {seconds / 3600:.1f} h"


class Ticker:
    """Progress of a long operation: a line every few seconds."""

    def __init__(self) -> None:
        self._last_line = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Print how many of ``total`` are done, unless a line was printed a moment ago."""
        if time.monotonic() - self._last_line >= TICK:
            self._last_line = time.monotonic()
            say(f"  {done} of {total} {what}", err=True)


class Follower(RunWatcher):
    """Progress of a run; its methods may be called from several threads."""

    def __init__(self) -> None:
        self._total = self._done = 0
        self._left: TimeLeft | None = None
        self._full: dict[str, Outcome] = {}
        self._last_line = time.monotonic()

    def planned(self, cases: list[Planned], time_left: TimeLeft) -> None:
        """Print the number of cases, and those that have no effect."""
        self._total, self._done, self._left = sum(not planned.stored for planned in cases), 0, time_left
        say(f"{count(len(cases), 'case')}: {len(cases) - self._total} already measured, {self._total} to run.", err=True)
        for planned in cases:
            if planned.idle_reason:
                say(f"{planned.case.title} has no effect. {planned.idle_reason}", err=True)

    def started(self, case: Case) -> None:
        self._last_line = time.monotonic()

    def advanced(self, case: Case) -> None:
        """Print how far a case is, if nothing was printed for long."""
        if self._left is not None and time.monotonic() - self._last_line > QUIET:
            self._last_line = time.monotonic()
            say(f"    {case.title}: {100 * self._left.fraction(case.key):.0f} % done{self._time_left(', ')}", err=True)

    def ended(self, outcome: Outcome) -> None:
        """Print the values of a finished case, or why it failed."""
        self._done += 1
        if outcome.ok and outcome.case.role == "baseline":
            self._full[outcome.case.cell] = outcome
        batch, speed, *other_values = case_values(outcome, self._full.get(outcome.case.cell))
        values = [batch and f"{batch} a batch", speed and f"{speed} the full cache's speed", *other_values]
        parts = [f"{outcome.status}, {outcome.seconds:.1f} s", ", ".join(filter(None, values)), self._time_left() if outcome.ok else ""]
        say(f"[{self._done}/{self._total}] {outcome.case.title}: {'; '.join(filter(None, parts))}", err=True)
        if not outcome.ok:
            say(f"    {outcome.reason[:200]}", err=True)

    def _time_left(self, before: str = "") -> str:
        seconds = self._left.seconds() if self._left is not None else None
        return "" if seconds is None else f"{before}{about(seconds)} left"
