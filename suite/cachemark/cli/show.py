"""``cachemark show``: a run or a case, in words and numbers."""

from __future__ import annotations

import click

from ..errors import unknown
from ..result import Outcome
from ..units import METRICS
from .options import echo_json, existing, json_option, run_option, store_option


@click.command()
@click.argument("case", required=False)
@store_option
@run_option
@json_option
def show(case: str | None, store_url: str, run_id: int | None, as_json: bool) -> None:
    """Print a run, or one CASE of it (its key, the beginning of it, or its label such as "linear 1/4") with raw samples."""
    with existing(store_url) as store:
        run = store.run(run_id)
        outcomes = store.outcomes(run.id)
    if case is not None:
        outcomes = _chosen(case, outcomes)
    if as_json:
        echo_json([outcome.to_json() for outcome in outcomes])
    elif case is not None:
        _print_case(outcomes[0])
    else:
        click.echo(f"Run {run.id}: {run.plan}, {run.state}, {run.started}, {run.environment.machine_class}")
        for outcome in outcomes:
            click.echo(f"  {outcome.case.key}  {outcome.case.model}  {outcome.case.label:<24}  {outcome.status:<12}  {_figures(outcome)}")


def _chosen(case: str, outcomes: list[Outcome]) -> list[Outcome]:
    found = [o for o in outcomes if case == o.case.label or (len(case) >= 4 and o.case.key.startswith(case))]
    if not found:
        raise unknown("case", case, [o.case.label for o in outcomes])
    return found[:1]


def _figures(outcome: Outcome) -> str:
    names = ("latency", "kv_allocated", "kl", "token_agreement")
    return "  ".join(f"{name} {outcome.mean(name):.4g} {METRICS[name].unit}".rstrip() for name in names if name in outcome.samples)


def _print_case(outcome: Outcome) -> None:
    for name, value in outcome.case.to_json().items():
        click.echo(f"{name:>14}  {value}")
    click.echo(f"{'status':>14}  {outcome.status}")
    for name, values in outcome.samples.items():
        metric, mean, middle = METRICS[name], outcome.mean(name), outcome.median(name)
        click.echo(f"{name:>18}  mean {mean:.6g}  median {middle:.6g} {metric.unit}  n = {len(values)}")
        click.echo(" " * 20 + " ".join(f"{value:.6g}" for value in values))
    for name, fact in outcome.facts.items():
        click.echo(f"{name:>18}  {fact}")
    if outcome.log:
        click.echo(outcome.log)
