"""``python -m tools.cards``: write the pages about models and methods."""

from __future__ import annotations

from pathlib import Path

import click

from cachemark.plugins.loading import load as imported

from ..command import run_command
from . import collected
from .pages import methods_page, models_page


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--anchors", type=click.Path(file_okay=False, path_type=Path), default=Path("baselines/anchors"), show_default=True,
              help="Folder of the anchors that were reached.")
@click.option("--baselines", type=click.Path(file_okay=False, path_type=Path), default=Path("baselines/accepted"), show_default=True,
              help="Folder of the baselines, which say what images of the embedded models are worth.")
@click.option("--plugin", "plugin_files", multiple=True, type=click.Path(), help="Python file that registers a method; repeatable.")
def cards(folder: Path, anchors: Path, baselines: Path, plugin_files: tuple[str, ...]) -> None:
    """Write models.md and methods.md into FOLDER: what is known about every model and every method."""
    for file in plugin_files:
        imported(file)
    evidence = collected.evidence(anchors)
    pages = {"models.md": models_page(collected.trained(baselines), collected.released(), evidence),
             "methods.md": methods_page(collected.methods_known(everything=bool(plugin_files)), evidence)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
        click.echo(str(folder / name))


if __name__ == "__main__":
    run_command(cards)
