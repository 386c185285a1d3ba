"""Progress of a run on standard error.

On a terminal it is a table that is filled as cases end, with the time left, else one line per case.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..core.result import Outcome
from ..core.spec import Case
from ..core.wording import count

if TYPE_CHECKING:
    from ..workflows.explain import Decision
    from ..workflows.time_left import TimeLeft

COLUMNS = ("case", "a batch", "speed", "saved", "images")
QUIET = 60.0  # seconds without a line, after which one says how far a case is
AROUND = 7  # lines of a terminal that are not rows of the table


def plain(text: str) -> str:
    """Return foreign text without control characters and without the commands of GitHub's log (``::``, ``##[``)."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return printable.replace("::", ": :").replace("##[", "## [")


def about(seconds: float) -> str:
    """Return a time in words: ``about 40 s``, ``about 3 min``, ``about 2.5 h``."""
    if seconds < 90:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    return f"about {seconds / 60:.0f} min" if seconds < 90 * 60 else f"about {seconds / 3600:.1f} h"


class Follower:
    """Progress of a run as a context manager; its methods may be called from several threads."""

    def __init__(self) -> None:
        self._total = self._done = 0
        self._left: TimeLeft | None = None
        self._running: dict[str, Case] = {}
        self._full: dict[str, Outcome] = {}
        self._rows: list[tuple[str, str, tuple[str, str, str, str]]] = []
        self._began = self._spoke = time.monotonic()
        self._console, self._live = Console(stderr=True), None
        if sys.stderr.isatty():
            self._live = Live(console=self._console, refresh_per_second=1, get_renderable=self._drawn)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    # -- what the run says ----------------------------------------------------------------------------------------------
    def planned(self, decisions: list[Decision], time_left: TimeLeft) -> None:
        """Print the number of cases, and start the table."""
        self._total, self._done, self._left, self._began = sum(not d.stored for d in decisions), 0, time_left, time.monotonic()
        self._rows.clear()
        click.echo(f"{count(len(decisions), 'case')}: {len(decisions) - self._total} already measured, {self._total} to run.", err=True)
        for planned in (decision.planned for decision in decisions if decision.planned.idle_reason):
            click.echo(f"{plain(planned.case.title)} has no effect. {plain(planned.idle_reason)}", err=True)
        if self._live is not None and self._total:
            self._live.start()

    def started(self, case: Case) -> None:
        """Add a running case."""
        self._running[case.key] = case
        self._spoke = time.monotonic()

    def advanced(self, case: Case) -> None:
        """Print how far a case is, if nothing was printed for long and there is no table."""
        if self._live is None and time.monotonic() - self._spoke > QUIET:
            self._spoke = time.monotonic()
            click.echo(f"    {plain(case.title)}: {self._share(case)}{self._time_left()}", err=True)

    def ended(self, outcome: Outcome) -> None:
        """Add a finished case; print a failure at once."""
        self._done += 1
        self._running.pop(outcome.case.key, None)
        if outcome.ok and outcome.case.role == "baseline":
            self._full[outcome.case.cell] = outcome
        from ..workflows.results import case_values

        values, title = case_values(outcome, self._full.get(outcome.case.cell)), plain(outcome.case.title)
        self._rows.append((title, str(outcome.status), values))
        text = f"[{self._done}/{self._total}] {title}: {outcome.status}, {outcome.seconds:.1f} s"
        words = (values[0] and f"{values[0]} a batch", values[1] and f"{values[1]} the full cache's speed", *values[2:])
        text += "".join(f"{', ' if number else '; '}{word}" for number, word in enumerate(filter(None, words)))
        text += self._time_left("; ") if outcome.ok else f"\n    {plain(outcome.reason[:200])}"
        if self._live is None:
            click.echo(text, err=True)
            return
        if not outcome.ok:
            self._console.print(text, markup=False, highlight=False)
        self._live.refresh()

    # -- words and pictures ---------------------------------------------------------------------------------------------
    def _share(self, case: Case) -> str:
        return f"{100 * self._left.fraction(case.key):.0f} % done" if self._left is not None else ""

    def _time_left(self, before: str = ", ") -> str:
        seconds = self._left.seconds() if self._left is not None else None
        return "" if seconds is None else f"{before}{about(seconds)} left"

    def _drawn(self) -> Group:
        """Return the newest rows that fit on the terminal, with the running cases below."""
        table, most = Table(box=None, pad_edge=False), max(3, self._console.size.height - AROUND)
        for name in COLUMNS:
            table.add_column(name, justify="left" if name in ("case", "images") else "right", no_wrap=True)
        for title, status, values in list(self._rows)[-most:]:
            cells = values if status == "ok" else (status, "", "", "")
            table.add_row(*(Text(cell) for cell in (title, *cells)))
        done = self._done + sum(self._left.fraction(key) for key in list(self._running)) if self._left else self._done
        state = Text(f"  {self._done} of {self._total}, {time.monotonic() - self._began:.0f} s{self._time_left()}")
        running = [Text(f"{plain(case.title)}: {self._share(case)}") for case in list(self._running.values())[:3]]
        return Group(table, *running, ProgressBar(max(1, self._total), done, width=40), state)
