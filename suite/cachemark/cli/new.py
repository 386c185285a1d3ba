"""``cachemark new``: a package of one's own, begun."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..workflows.starting import Thing


@click.command()
@click.argument("thing", type=click.Choice(["method", "model"]), metavar="method|model")
@click.argument("name", metavar="NAME")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=".", show_default=True,
              help="Where the folder of the package is made.")
def new(thing: Thing, name: str, folder: Path) -> None:
    """Begin a package with a method or a model of your own, called NAME.

    Writes a working one, its test and a pyproject that names it to cachemark into a new folder; nothing is overwritten. What is written
    passes `cachemark test-method` or `cachemark test-model` as it stands.
    """
    from ..core.wording import printed
    from ..workflows.starting import start

    files = start(thing, name, folder)
    for file in files:
        click.echo(printed(str(file)))
    source = files[2]
    click.echo(printed(f"Change it, prove it and measure it:\n  cachemark test-{thing} {source}"))
    if thing == "method":
        click.echo(printed(f"  cachemark run demo --plugin {source} --store {name}.sqlite --report {name}.html"))
