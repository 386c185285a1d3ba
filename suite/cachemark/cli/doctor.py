"""``cachemark doctor``: a check-up of this machine."""

from __future__ import annotations

import click

from .options import echo_json, json_option


@click.command()
@click.option("--quick", is_flag=True, help="Skip the slow checks: rates and noise.")
@json_option
def doctor(quick: bool, as_json: bool) -> None:
    """Check the devices, rates, noise and packages of this machine.

    Prints devices, drivers and the torch they allow, rates, noise and missing packages. Rates are
    bandwidth and peak FLOP/s. Noise is the scatter of twenty repeats of a fixed workload, and the smallest change that it allows to detect.
    The advice lists everything that would disturb a measurement now, with a remedy.
    """
    from ..workflows.doctor import doctor as examine

    facts = examine(quick=quick)
    if as_json:
        echo_json(facts)
        return
    for name, value in facts.items():
        click.echo(f"{name}:")
        for key, item in (value.items() if isinstance(value, dict) else enumerate(value, 1)):
            click.echo(f"  {key}: {item}")
