"""Progress of a run on standard error: a bar with the time left on a terminal, else one line per case."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..core.result import Outcome
from ..core.spec import Case

if TYPE_CHECKING:
    from ..workflows.deciding import Decision


def plain(text: str) -> str:
    """A line of somebody else's text, for a terminal or the log of a CI: without control characters, and no command to GitHub, which reads
    lines that begin with ``::`` or hold ``##[``."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown.replace("::", ": :").replace("##[", "## [")


class Follower:
    """Follows a run on standard error. Use as a context manager."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._total = self._done = 0
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description:<28}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                       TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=False))
            self._bar = Progress(*columns, console=Console(stderr=True), speed_estimate_period=600)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def planned(self, decisions: list[Decision]) -> None:
        """Say how much there is to do, and start the bar."""
        self._total = sum(not d.stored for d in decisions)
        click.echo(f"{len(decisions)} cases: {len(decisions) - self._total} already measured, {self._total} to run.", err=True)
        for planned in (decision.planned for decision in decisions if decision.planned.idle_reason):
            click.echo(f"{plain(planned.case.title)} does nothing. {plain(planned.idle_reason)}", err=True)
        if self._bar is not None and self._total:
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total)

    def started(self, case: Case) -> None:
        """Name the case that begins."""
        if self._bar is not None:
            self._bar.update(self._task, description=plain(case.title))

    def ended(self, outcome: Outcome) -> None:
        """Count a case; say at once when one did not end well."""
        self._done += 1
        text = f"[{self._done}/{self._total}] {plain(outcome.case.title)}: {outcome.status}, {outcome.seconds:.1f} s"
        if not outcome.ok:
            text += f"\n    {plain(outcome.reason[:200])}"
        if self._bar is not None:
            self._bar.advance(self._task)
            if not outcome.ok:
                self._bar.console.print(text, markup=False, highlight=False)
        else:
            click.echo(text, err=True)
