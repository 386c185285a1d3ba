"""``python -m tools.vectors``: write test vectors and the manifest of a model of the transformers library."""

from __future__ import annotations

from pathlib import Path

import click

from ..command import run_command
from . import emu3, glm_image

MODELS = {"emu3": emu3.write, "glm_image": glm_image.write}


@click.command()
@click.argument("model", type=click.Choice(sorted(MODELS)))
@click.option("--tests", type=click.Path(file_okay=False, path_type=Path), default=Path("tests/conformance"), show_default=True,
              help="Folder of the conformance tests.")
def vectors(model: str, tests: Path) -> None:
    """Write the vectors and the manifest of MODEL."""
    for path in MODELS[model](tests):
        click.echo(path)


if __name__ == "__main__":
    run_command(vectors)
