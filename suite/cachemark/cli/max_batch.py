"""``cachemark max-batch``: the largest batch that fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.units import LARGEST, LARGEST_RATE, RATE
from .options import echo_json, fresh_option, json_option, plan_options, report_option
from .run import print_path, refuse_empty, write_report

if TYPE_CHECKING:
    from ..workflows.results import Run
    from ..workflows.session import Machine


@click.command("max-batch")
@plan_options
@report_option
@fresh_option
@json_option
def max_batch(
    plan: str, store_url: str, plugin_files: tuple[str, ...], methods: tuple[str, ...], machine: Machine, report_path: Path | None,
    fresh: bool, as_json: bool,
) -> None:
    """Find the largest batch that fits, for every method of a plan.

    Prints throughput at the plan's batch and at the largest one. On a CPU it needs --memory-cap.
    """
    from ..workflows.run import max_batch as find_largest
    from .progress import Follower

    with Follower() as follower:
        run = find_largest(plan, fresh=fresh, watcher=follower, store=store_url, machine=machine, plugins=plugin_files, methods=methods)
    report = write_report(run, report_path)
    assert run.measured is not None
    rows = [{"model": o.case.model, "case": o.case.label, "status": str(o.status),
             **{name: o.median(name) for name in (LARGEST, RATE, LARGEST_RATE)}} for o in run.outcomes]
    if as_json:
        echo_json({"run": run.id, "ran": len(run.measured.ran), "skipped": run.measured.reused, "report": report, "cases": rows})
    else:
        _print(run, rows)
        print_path(report)
    refuse_empty(run)


def _print(run: Run, rows: list[dict[str, Any]]) -> None:
    click.echo(f"{'':44}{'largest batch':>14}{'image/s, equal batch':>22}{'image/s, equal memory':>23}")
    for outcome, row in zip(run.outcomes, rows, strict=True):
        cells = [f"{row[name]:.4g}" if row[name] is not None else "—" for name in (LARGEST, RATE, LARGEST_RATE)]
        status = "" if outcome.ok else f"  {outcome.status}"
        click.echo(f"{outcome.case.title:<44}{cells[0]:>14}{cells[1]:>22}{cells[2]:>23}{status}")
