"""``cachemark price``: cost of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..core.wording import count, printed
from .options import echo_json, json_option, plan_options

if TYPE_CHECKING:
    from ..workflows.price import PriceList
    from ..workflows.session import Machine


@click.command()
@plan_options
@click.option("--on", type=click.Choice(["a100", "h100", "h200"]), help="Estimate for this card instead of this machine.")
@json_option
def price(
    plan: str, store_url: str, plugin_files: tuple[str, ...], methods: tuple[str, ...], machine: Machine, on: str | None, as_json: bool,
) -> None:
    """Estimate the cost of a plan: device hours, disk and memory.

    Nothing is measured. Stored durations are used where the store has them, elsewhere 1.5 times the roofline. Missing files and methods
    that save nothing are listed.
    """
    from ..workflows.price import price_list

    costs = price_list(plan, on=on or "", store=store_url, machine=machine, plugins=plugin_files, methods=methods)
    if as_json:
        echo_json({"plan": costs.plan, "on": costs.on, "cases": costs.cases, "to_run": costs.to_run, "hours": costs.hours,
                   "models": costs.models, "missing": costs.missing, "disk_free": costs.disk_free,
                   "idle": [{"case": title, "reason": reason} for title, reason in costs.idle]})
    else:
        _print(costs)


def _print(costs: PriceList) -> None:
    stored = costs.cases - costs.to_run
    click.echo(f"{costs.plan} on {costs.on}: {count(costs.cases, 'case')}, {stored} measured already, {costs.to_run} to run.")
    click.echo(f"{'':20}{'cases':>6}{'device hours':>14}{'disk':>10}{'memory':>10}  estimated from")
    for row in costs.models:
        source = f"stored durations of {count(row.from_stored, 'case')}, roofline × 1.5 of {row.cases - row.from_stored}"
        click.echo(f"{row.model:20}{row.cases:6}{row.hours:14.3f}{row.disk / 2**20:7.1f} MiB{row.memory / 2**30:6.1f} GiB  {source}")
    click.echo(f"In all {costs.hours:.2f} device hours and {sum(row.disk for row in costs.models) / 2**20:.1f} MiB of "
               f"{costs.disk_free / 2**30:.0f} GiB free.")
    for path in costs.missing:
        click.echo(f"Missing: {path}  (estimated without it)")
    for title, reason in costs.idle:
        click.echo(printed(f"{title} has no effect. {reason}"))
