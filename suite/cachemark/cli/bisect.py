"""``cachemark bisect``: the commit since which a case is worse."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import echo_json, json_option, plugin_option

if TYPE_CHECKING:
    from ..plan.expand import Planned
    from ..stats.paired_test import Rule
    from ..store.rows import Verdict
    from ..trial.request import TrialRequest
    from ..workflows.pairs import Pair, PairRunner


@click.command()
@click.argument("case")
@click.option("--plan", required=True, help="The plan that has the case.")
@click.option("--good", required=True, help="A commit at which it was well.")
@click.option("--bad", required=True, help="A later commit at which it is worse.")
@click.option("--repository", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Where the commits are.  [default: the checkout around this package]")
@plugin_option
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to measure.")
@click.option("--threads", type=click.IntRange(min=1), default=os.cpu_count() or 1, show_default="all", help="CPU threads of an arm.")
@click.option("--delta", type=click.FloatRange(0, 1, min_open=True, max_open=True),
              help="Minimum effect, a share.  [default: 0.1 on a CPU, 0.02 on a GPU; half of the effect once the ends have shown it]")
@click.option("--images", type=click.IntRange(min=3), default=8, show_default=True, help="Counted generations of an arm in a pair.")
@json_option
def bisect(
    case: str, plan: str, good: str, bad: str, repository: Path | None, plugin_files: tuple[str, ...], device: str, threads: int,
    delta: float | None, images: int, as_json: bool,
) -> None:
    """Find the commit since which CASE of a plan, named by its label, is worse.

    The ends are compared first; then git bisect goes on, each commit being compared with the good end in pairs. A commit that does
    not run, or cannot be told, is skipped. Exit codes: 0 found, 3 the ends do not differ or skipped commits leave several.
    """
    from ..core import plugins
    from ..gate.nights import FLOOR
    from ..plan import schema as plans
    from ..trial.request import Task, TrialRequest
    from ..workflows.checkouts import checkouts, repository_of
    from ..workflows.pairs import cells_of

    added = [name for file in plugin_files for name in plugins.load(file)]
    loaded = plans.load(plan).joined(added)
    (name, planned), *others = cells_of(loaded, device, [case], images).items()
    if others:
        raise click.UsageError(f"{case!r} names several cases: {', '.join([name, *(n for n, _ in others)])}. Give one in full.")
    options = TrialRequest(loaded.timeout, threads, tuple(str(Path(file).resolve()) for file in plugin_files), task=Task.TIMES)
    where = repository_of(repository)
    began = time.monotonic()
    with checkouts(where, [good, bad]) as (old, new):
        hunt = Hunt(name, planned, options, old, delta or FLOOR[device])
        found = hunt.run(where, good, bad, new)
    if as_json:
        echo_json({**found, "seconds": round(time.monotonic() - began, 1)})
    else:
        _print(found, time.monotonic() - began)
    sys.exit(0 if found["commit"] else 3)


@dataclass
class Hunt:
    """One case, compared with the good end's code again and again. ``pairs`` counts what that took."""

    name: str
    planned: Planned
    request: TrialRequest
    good: Path
    delta: float
    pairs: int = 0
    shown: list[tuple[str, Verdict]] = field(default_factory=list)

    def run(self, repository: Path, good: str, bad: str, new: Path) -> dict[str, object]:
        """What was found, as plain data."""
        from ..stats.paired_test import Rule
        from ..workflows.git_bisect import search

        rule = Rule(self.delta, 1)
        rows = self.compared(new, bad, rule, once=True)  # what is exact shows in one pair, times do not
        rows = rows if _culprit(rows) else self.compared(new, bad, rule)
        culprit = _culprit(rows)
        if culprit is None:
            failed = [r.reason for r in rows if r.metric == "status"]
            said = "The ends cannot be compared" if failed else "The ends do not differ"
            return self._found("", (), f"{said}: {'; '.join(failed or [r.reason for r in rows if r.metric == 'latency'])}")
        half = abs((culprit.change or 1) - 1) / 2
        rule = Rule(min(max(self.delta, half), 0.9), 1) if culprit.metric == "latency" else Rule(0.9, 1)
        once = culprit.metric != "latency"
        ended = search(repository, good, bad, lambda folder, commit: _answer(culprit, self.compared(folder, commit, rule, once)))
        shown = next((row for commit, row in reversed(self.shown) if commit == ended.commit and row.metric == culprit.metric), culprit)
        return self._found(ended.commit, ended.left, f"{shown.metric}: {shown.reason or shown.verdict}")

    def compared(self, folder: Path, commit: str, rule: Rule, once: bool = False) -> Sequence[Verdict]:
        """Rows of the case at a commit against the good end, after as many pairs as the test asks for, or ``once``."""
        from ..gate.comparison import measure_until_decided, verdicts
        from ..workflows.checkouts import code_of
        from ..workflows.pairs import PairRunner, Side

        cells = {self.name: self.planned}
        before, after = (Side(str(where), cells, replace(self.request, code=code_of(where))) for where in (self.good, folder))
        so_far = self.pairs
        held = measure_until_decided(cells, self._counted(PairRunner(before, after)), rule, lambda: not once or self.pairs == so_far)
        rows = verdicts(held, rule)
        self.shown += [(commit, row) for row in rows]
        for row in rows:
            if row.metric in ("latency", "status") or row.verdict not in ("equivalent", "not_compared"):
                click.echo(f"{commit[:12]}  {row.verdict}: {row.metric}: {row.reason}", err=True)
        return rows

    def _counted(self, course: PairRunner) -> Callable[[list[str]], list[Pair]]:
        def measure(names: list[str]) -> list[Pair]:
            self.pairs += 1
            return course.round(names)

        return measure

    def _found(self, commit: str, left: Sequence[str], said: str) -> dict[str, object]:
        return {"case": self.name, "commit": commit, "left": list(left), "effect": said, "pairs": self.pairs}


def _culprit(rows: Sequence[Verdict]) -> Verdict | None:
    """By what the bad end is worse: first what is exact, for that one pair tells; then time."""
    from ..gate.baseline_check import HASHES

    worse = [r for r in rows if r.verdict == "regressed" or (r.verdict == "changed" and r.metric in HASHES)]
    return min(worse, key=lambda r: (r.metric == "latency", r.metric != "status"), default=None)


def _answer(culprit: Verdict, rows: Sequence[Verdict]) -> str:
    """What git is told of a commit."""
    from ..workflows.git_bisect import BAD, GOOD, SKIP

    if any(row.metric == "status" for row in rows):
        failed = next(row for row in rows if row.metric == "status")
        return BAD if culprit.metric == "status" and failed.verdict == culprit.verdict else SKIP
    if culprit.metric == "status":
        return GOOD
    found = next((row for row in rows if row.metric == culprit.metric), None)
    if found is None or found.verdict == "inconclusive":
        return SKIP
    return BAD if found.verdict == culprit.verdict else GOOD


def _print(found: dict[str, object], seconds: float) -> None:
    left = found["left"]
    assert isinstance(left, list)
    if found["commit"]:
        click.echo(f"First bad commit: {found['commit']}")
    elif left:
        click.echo(f"Skipped commits leave {len(left)}: {', '.join(commit[:12] for commit in left)}")
    click.echo(f"{found['case']}: {found['effect']}")
    click.echo(f"{found['pairs']} pairs, {seconds / 60:.1f} minutes.")
