"""``cachemark show``: a run or a case as text."""

from __future__ import annotations

import click

from ..core.result import JUDGING, Outcome
from ..core.units import KV, TIME, compared_tokens, metric, of_plug_ins
from .options import echo_json, json_option, stored_run_options


@click.command()
@click.argument("case", required=False)
@stored_run_options
@json_option
def show(case: str | None, store_url: str, run_id: int | None, as_json: bool) -> None:
    """Print a run, or one case with its raw samples.

    CASE is a key, the beginning of a key, or a label such as "linear 1/4". A comparison measures a case many times: each outcome is
    printed.
    """
    from ..workflows.results import Run, outcomes_of

    run = Run(store_url, run_id)
    outcomes = outcomes_of(case, run.outcomes) if case is not None else list(run.outcomes)
    if as_json:
        echo_json([outcome.to_json() for outcome in outcomes])
    elif case is not None:
        for number, outcome in enumerate(outcomes):
            click.echo("\n" * (number > 0), nl=False)
            _print_case(outcome)
    else:
        record = run.record
        click.echo(f"Run {record.id}: {record.plan}, {record.state}, {record.started}, {record.environment.machine_class}")
        for outcome in outcomes:
            click.echo(f"  {outcome.case.key}  {outcome.case.model}  {outcome.case.label:<24}  {outcome.status:<12}  "
                       f"{_main_values(outcome)}")


def _main_values(outcome: Outcome) -> str:
    """Return main values as in the report: medians of times and counts, means over seeds of image metrics."""
    names = (TIME, KV, compared_tokens(masked=False, forced=True), compared_tokens(masked=False))
    figures = {name: (outcome.mean(name), "mean") if metric(name).kind in JUDGING else (outcome.median(name), "median")
             for name in (*names, *(own for kind in JUDGING for own in of_plug_ins(outcome.samples, kind))) if name in outcome.samples}
    return "  ".join(f"{name} {value:.4g} {metric(name).unit}".rstrip() + f" ({what})" for name, (value, what) in figures.items())


def _print_case(outcome: Outcome) -> None:
    for name, value in outcome.case.to_json().items():
        click.echo(f"{name:>14}  {value}")
    click.echo(f"{'status':>14}  {outcome.status}")
    for name, values in outcome.samples.items():
        mean, median = outcome.mean(name), outcome.median(name)
        click.echo(f"{name:>18}  mean {mean:.6g}  median {median:.6g} {metric(name).unit}  n = {len(values)}")
        click.echo(" " * 20 + " ".join(f"{value:.6g}" for value in values))
    for name, fact in outcome.facts.items():
        click.echo(f"{name:>18}  {'profiled; see the report' if name == 'layers' else fact}")
    if outcome.log:
        click.echo(outcome.log)
