"""``cachemark bisect``: the commit that made a case worse."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import Finite, echo_json, images_option, json_option, machine_options, plugin_option, repository_option

if TYPE_CHECKING:
    from ..store.rows import Verdict
    from ..workflows.bisect import BisectResult
    from ..workflows.session import Machine


@click.command()
@click.argument("case")
@click.option("--plan", required=True, help="Plan with the case.")
@click.option("--good", required=True, help="Good commit.")
@click.option("--bad", required=True, help="Later commit that is worse.")
@repository_option
@plugin_option
@machine_options
@click.option("--delta", type=Finite(0, 1, min_open=True, max_open=True),
              help="Minimum effect, e.g. 0.02.  [default: 0.1 on a CPU, 0.02 on a GPU; half of the effect between the ends]")
@images_option
@json_option
def bisect(
    case: str, plan: str, good: str, bad: str, repository: Path | None, plugin_files: tuple[str, ...], machine: Machine,
    delta: float | None, images: int, as_json: bool,
) -> None:
    """Find the commit that made a case worse.

    CASE is the label of a case of the plan. The ends are compared first; then git bisect compares each commit with the good end in
    pairs. A commit that does not run, or whose comparison is inconclusive, is skipped. Exit codes: 0 found, 3 the ends do not differ
    or skipped commits leave several.
    """
    from ..workflows.bisect import bisect as search

    began = time.monotonic()
    result = search(plan, case, good, bad, repository=repository, machine=machine, plugins=plugin_files, delta=delta,
                             images=images, on_row=_tell)
    seconds = time.monotonic() - began
    if as_json:
        echo_json({**asdict(result), "seconds": round(seconds, 1)})
    else:
        _print(result, seconds)
    sys.exit(0 if result.commit else 3)


def _tell(commit: str, row: Verdict) -> None:
    """Print the verdicts on a commit on standard error."""
    if row.telling:
        click.echo(f"{commit[:12]}  {row.verdict}: {row.metric}: {row.reason}", err=True)


def _print(result: BisectResult, seconds: float) -> None:
    if result.commit:
        click.echo(f"First bad commit: {result.commit}")
    elif result.candidates:
        click.echo(f"Skipped commits leave {len(result.candidates)}: {', '.join(commit[:12] for commit in result.candidates)}")
    click.echo(f"{result.case}: {result.effect}")
    click.echo(f"{result.pairs} pairs, {seconds / 60:.1f} minutes.")
