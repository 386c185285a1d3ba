"""``python -m tools.cards``: write the generated parts of the pages about models and methods."""

from __future__ import annotations

from pathlib import Path

import click

from ..command import run_command
from .imports import with_picture
from .methods import with_facts
from .models import models_page
from .plans import write_costs, write_page
from .values import values_page


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--baselines", type=click.Path(file_okay=False, path_type=Path), default=Path("baselines/accepted"), show_default=True,
              help="Folder of the accepted baselines, which hold the image quality of bundled models.")
@click.option("--costs", is_flag=True, help="Estimate the costs of all plans again, which takes a minute.")
def cards(folder: Path, baselines: Path, costs: bool) -> None:
    """Write the pages models, plans and values in FOLDER, the facts of methods.md and the picture of architecture.md."""
    if costs:
        write_costs()
    methods, models, values = (folder / "reference" / f"{name}.md" for name in ("methods", "models", "values"))
    methods.write_text(with_facts(methods.read_text(encoding="utf-8")), encoding="utf-8")
    architecture = folder / "architecture.md"
    architecture.write_text(with_picture(architecture.read_text(encoding="utf-8")), encoding="utf-8")
    models.write_text(models_page(baselines), encoding="utf-8")
    values.write_text(values_page(), encoding="utf-8")
    click.echo(f"{methods}\n{models}\n{values}\n{write_page(folder)}\n{architecture}")


if __name__ == "__main__":
    run_command(cards)
