"""``cachemark new``: a template package."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import Finite, refuse_alone

if TYPE_CHECKING:
    from ..workflows.new import Thing


OF_PUBLISHED = ("--first-code", "--codes", "--grid", "--begin", "--image", "--longest", "--cfg-scale")
TOKENS, MOST_IDS, MOST_SIDE, MOST_SCALE = "TOKEN", 10**7, 1_024, 1_000.0


@click.command()
@click.argument("thing", type=click.Choice(["method", "model", "metric"]), metavar="method|model|metric")
@click.argument("name", metavar="NAME")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=".", show_default=True,
              help="Parent folder of the package.")
@click.option("--from-hf", "published", type=click.Path(path_type=Path), metavar="DIR",
              help="Folder of a published Llama-like image model to read.")
@click.option("--first-code", type=click.IntRange(0, MOST_IDS), help="With --from-hf: id of the first image code.")
@click.option("--codes", type=click.IntRange(1, MOST_IDS), help="With --from-hf: number of image codes.")
@click.option("--grid", type=click.IntRange(1, MOST_SIDE), help="With --from-hf: codes per side of the image.")
@click.option("--begin", multiple=True, metavar=TOKENS, help="With --from-hf: special token before the prompt; repeatable.")
@click.option("--image", multiple=True, metavar=TOKENS, help="With --from-hf: special token after the prompt; repeatable.")
@click.option("--longest", type=click.IntRange(1, MOST_IDS), default=1024, show_default=True,
              help="With --from-hf: maximum tokens of a prompt, special tokens included.")
@click.option("--cfg-scale", type=Finite(0, MOST_SCALE), default=1.0, show_default=True,
              help="With --from-hf: guidance scale (1: no guidance).")
def new(thing: Thing, name: str, folder: Path, published: Path | None, first_code: int | None, codes: int | None, grid: int | None,
        begin: tuple[str, ...], image: tuple[str, ...], longest: int, cfg_scale: float) -> None:  # fmt: skip
    """Create a template package for a method, model or metric.

    Writes a working example called NAME, its test and a pyproject with its entry point into a new folder; nothing is overwritten. The
    example passes `cachemark test method`, `test model` or `test metric` as it is. With --from-hf, sizes and tensor names are read
    from config.json and the safetensors of a published model, and every tensor is checked.
    """
    from ..core.wording import printed

    for option in OF_PUBLISHED:
        refuse_alone(option, "--from-hf", "nothing else reads it.")
    if published is None:
        from ..workflows.new import start

        files = start(thing, name, folder)
    else:
        if thing != "model" or first_code is None or codes is None or grid is None:
            raise click.UsageError("--from-hf describes a model, and needs --first-code, --codes and --grid.")
        from ..workflows.describing import Drawing, start_described

        files = start_described(published, name, Drawing(first_code, codes, grid, begin, image, longest, cfg_scale), folder)
    click.echo("\n".join(printed(str(file)) for file in files))
    source = files[2]
    weights_option = "" if published is None else f" --weights {shlex.quote(str(published))}"
    click.echo("Change it, prove it and measure it:")
    click.echo(printed(f"  cachemark test {thing} {source}{weights_option}"))
    if thing != "model":
        click.echo(printed(f"  cachemark run demo --plugin {source} --store {name}.sqlite --report {name}.html"))
