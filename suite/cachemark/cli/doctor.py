"""``cachemark doctor``: a check-up of this machine."""

from __future__ import annotations

import click

from .options import echo_json, json_option


@click.command()
@click.option("--quick", is_flag=True, help="Leave out the checks that take seconds: rates and noise.")
@json_option
def doctor(quick: bool, as_json: bool) -> None:
    """Check what this machine can measure and what is missing.

    Prints devices, drivers and the torch they allow, rates, noise and missing packages. Rates are those of a copy and of a matrix product.
    Noise is the scatter of twenty repeats of a fixed workload, and the smallest change that could be seen through it. The advice names
    whatever would spoil a measurement now, and the remedy.
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
