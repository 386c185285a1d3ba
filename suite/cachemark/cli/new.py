"""``cachemark new``: a template package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..workflows.new import Thing


@click.command()
@click.argument("thing", type=click.Choice(["method", "model", "metric"]), metavar="method|model|metric")
@click.argument("name", metavar="NAME")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=".", show_default=True,
              help="Parent folder of the package.")
def new(thing: Thing, name: str, folder: Path) -> None:
    """Create a template package for a method, model or metric.

    Writes a working example called NAME, its test and a pyproject with its entry point into a new folder; nothing is overwritten. The
    example passes `cachemark test method`, `test model` or `test metric` as it is.
    """
    from ..core.wording import printed
    from ..workflows.new import start

    files = start(thing, name, folder)
    click.echo("\n".join(printed(str(file)) for file in files))
    source = files[2]
    click.echo("Change it, prove it and measure it:")
    click.echo(printed(f"  cachemark test {thing} {source}"))
    if thing != "model":
        click.echo(printed(f"  cachemark run demo --plugin {source} --store {name}.sqlite --report {name}.html"))
