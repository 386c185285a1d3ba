"""Progress on standard error: a line per case or pair, and a bar or a sign of life."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..analysis.report_row import MASKED, derive
from ..core import formatting as fmt
from ..core.result import Outcome
from ..core.spec import Case
from ..core.units import TIME, metric, scores
from ..core.wording import count
from .progress_bar import ProgressBar, print_line
from .session import UNWATCHED, RunWatcher

if TYPE_CHECKING:
    from ..gate.comparison import PairOfOutcomes
    from ..plans.planned import Prepared
    from .time_left import TimeLeft

QUIET = 60.0  # after so many seconds without a line, the progress of the case is printed


def about(seconds: float) -> str:
    """Return a time in words: ``about 40 s``, ``about 3 min``, ``about 2.5 h``."""
    if seconds < 90:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    return f"about {seconds / 60:.0f} min" if seconds < 90 * 60 else f"about {seconds / 3600:.1f} h"


def watcher(progress: bool | RunWatcher) -> RunWatcher:
    """Return what is called while a run advances: a :class:`Follower` for True."""
    return progress if isinstance(progress, RunWatcher) else Follower() if progress else UNWATCHED


class PairLines:
    """A line for each measured pair, with the pairs and the time until the next decision on every configuration."""

    def __init__(self) -> None:
        self._began, self._done, self._total = time.monotonic(), 0, 0

    def left(self, pairs: int) -> None:
        """Note how many more pairs are needed."""
        self._total = self._done + pairs

    def measured(self, pair: PairOfOutcomes, what: str) -> None:
        """Print a pair."""
        statuses = "" if pair.ok else f": {pair.before.status}, {pair.after.status}"
        if what == "images":
            print_line(f"{pair.config}, images{statuses}")
            return
        self._done += 1
        missing = self._total - self._done
        seconds = (time.monotonic() - self._began) / self._done * missing
        print_line(f"[{self._done}/{self._total}] {pair.config}, pair {pair.number}{statuses}"
                   f"{f'; at least {missing} more, {about(seconds)}' if missing > 0 else ''}")


class Follower(RunWatcher):
    """Progress of a run; its methods may be called from several threads."""

    def __init__(self) -> None:
        self._total = self._done = 0
        self._left: TimeLeft | None = None
        self._full: dict[str, Outcome] = {}
        self._last_line = time.monotonic()
        self._bar: ProgressBar | None = None

    def planned(self, cases: Sequence[Prepared], time_left: TimeLeft) -> None:
        """Print the number of cases, what their seeds cannot decide, and those that have no effect."""
        from .decidable import too_few_seeds  # imports torch

        self._total, self._done, self._left = sum(not planned.stored for planned in cases), 0, time_left
        print_line(f"{count(len(cases), 'case')}: {len(cases) - self._total} already measured, {self._total} to run.")
        if note := too_few_seeds(cases):
            print_line(note)
        for planned in cases:
            if planned.idle_reason:
                print_line(f"{planned.case.title} has no effect. {planned.idle_reason}")
        self._bar = ProgressBar("", self._total, shown=self._total > 0, delay=0)

    def started(self, case: Case) -> None:
        self._last_line = time.monotonic()
        self._show(case)

    def advanced(self, case: Case) -> None:
        """Show how far a case is, on a line if nothing was printed for long."""
        if self._bar is not None and self._bar.shown:
            self._show(case)
        elif self._left is not None and time.monotonic() - self._last_line > QUIET:
            self._last_line = time.monotonic()
            print_line(f"    {case.title}: {100 * self._left.fraction(case.key):.0f} % done{self._time_left(', ')}")

    def ended(self, outcome: Outcome) -> None:
        """Print the values of a finished case, or why it failed."""
        self._done += 1
        if outcome.ok and outcome.case.role == "baseline":
            self._full[outcome.case.cell] = outcome
        turns = " in turns" if outcome.facts.full_beside else ""  # else the ratio of the two printed times
        batch, speed, *other_values = case_values(outcome, self._full.get(outcome.case.cell))
        values = [batch and f"{batch} a batch", speed and f"{speed} the full cache's speed{turns}", *other_values]
        parts = [f"{outcome.status}, {outcome.seconds:.1f} s", ", ".join(filter(None, values)), self._time_left() if outcome.ok else ""]
        print_line(f"[{self._done}/{self._total}] {outcome.case.title}: {'; '.join(filter(None, parts))}")
        if not outcome.ok:
            print_line(f"    {outcome.reason[:200]}")
        self._show()
        if self._bar is not None and self._done >= self._total:
            self._bar.__exit__()

    def _show(self, case: Case | None = None) -> None:
        """Move the bar; ``case`` is the one that runs."""
        if self._bar is not None and self._left is not None and self._bar.shown:
            within = self._left.fraction(case.key) if case else 0.0
            self._bar.reach(self._done + within, case.title if case else "", self._time_left())

    def _time_left(self, before: str = "") -> str:
        seconds = self._left.seconds() if self._left is not None else None
        return "" if seconds is None else f"{before}{about(seconds)} left"


def case_values(outcome: Outcome, full: Outcome | None) -> tuple[str, str, str, str]:
    """Return time per batch, speedup, saving and image score as text, each empty if unknown."""
    if not outcome.ok:
        return "", "", "", ""
    row, latency, candidate = derive(outcome, full, {}), outcome.median(TIME), outcome.case.role == "candidate"
    score = next((name for name in scores() if outcome.mean(name) is not None), "")
    mean = outcome.mean(score) if score else None
    saved = f"{fmt.percent(row.saving)} {'fewer FLOPs' if row.paradigm == MASKED else 'less KV'}" if candidate and row.saving else ""
    return ("" if latency is None or not row.timed else fmt.seconds(latency),
            fmt.times(row.speedup.value) if candidate and row.speedup else "", saved,
            "" if mean is None else f"{metric(score).title.lower()} {fmt.metric_value(mean, score)}")
