"""``python -m tools.cards``: draw the picture of packages anew, collect titles, and estimate the costs of plans."""

from __future__ import annotations

from pathlib import Path

import click

from ..command import run_command
from .efficiency import write_efficiency
from .imports import with_picture
from .methods import TITLES, titles_text
from .plans import write_costs


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--costs", is_flag=True, help="Read the accepted baselines and estimate the costs of all plans again, which takes a minute.")
def cards(folder: Path, costs: bool) -> None:
    """Write the picture of architecture.md in FOLDER, and the titles of methods and decoders."""
    if costs:
        write_efficiency()
        write_costs()
    architecture = folder / "architecture.md"
    architecture.write_text(with_picture(architecture.read_text(encoding="utf-8")), encoding="utf-8")
    TITLES.write_text(titles_text(), encoding="utf-8")
    click.echo(f"{architecture}\n{TITLES}")


if __name__ == "__main__":
    run_command(cards)
