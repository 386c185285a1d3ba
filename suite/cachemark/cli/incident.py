"""``cachemark incident``: known regressions, and who looks after them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.wording import count, percent
from .options import Line, all_of, echo_rows, json_option

if TYPE_CHECKING:
    from ..gate.incidents import Incident

register_option = click.option("--register", type=click.Path(dir_okay=False, path_type=Path), default=Path("baselines/incidents.json"),
                               show_default=True, help="File of incidents that `check --incidents` keeps.")
person_options = all_of(click.option("--who", type=Line(), required=True, help="Name of the person who decides."),
                        click.option("--link", type=Line(), default="", help="URL of the discussion."))


@click.group()
def incident() -> None:
    """List, acknowledge and accept known regressions."""


@incident.command("list")
@register_option
@json_option
def list_(register: Path, as_json: bool) -> None:
    """List the incidents of the register."""
    from ..workflows.accept import known_incidents

    echo_rows(known_incidents(register), as_json, _listed, f"No incident in {register}.")


@incident.command()
@click.argument("key")
@register_option
@person_options
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), required=True, metavar="YYYY-MM-DD",
              help="The day after which it notifies again.")
def acknowledge(key: str, register: Path, who: str, link: str, until: datetime) -> None:
    """Record who looks after the incident KEY, and until when."""
    from ..workflows.accept import acknowledge_incident

    acknowledge_incident(register, key, who, until.date(), link)
    click.echo(f"{key}: acknowledged by {who} until {until.date()}.")


@incident.command()
@click.argument("key")
@register_option
@person_options
def accept(key: str, register: Path, who: str, link: str) -> None:
    """Accept the incident KEY as it is; it notifies again only if it gets worse."""
    from ..workflows.accept import acknowledge_incident

    acknowledge_incident(register, key, who, None, link)
    click.echo(f"{key}: accepted by {who}.")


def _listed(item: Incident) -> str:
    by = f", {item.who}" if item.who else ""
    until = f" until {item.until}" if item.until else ""
    change = f", {percent(item.change - 1, '+')}" if item.change else ""
    cause = f"{item.factor} {item.value}, {count(len(item.configurations), 'configuration')}"
    return f"{item.key}  {item.state}{by}{until}  {item.metric}, {cause}{change}, since {item.since}"
