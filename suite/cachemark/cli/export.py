"""``cachemark export``: results and images in the formats of other programs."""

from __future__ import annotations

import os
from pathlib import Path

import click

from .options import plugin_option


@click.group()
def export() -> None:
    """Hand results and images to other programs."""


@export.command()
@click.argument("plan")
@click.argument("case")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@plugin_option
@click.option("--model", help="Which model, where several have a case of that name.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to make them.")
@click.option("--threads", type=click.IntRange(min=1), default=os.cpu_count() or 1, show_default="all", help="CPU threads.")
@click.option("--compressed", is_flag=True, help="Deflate them: a smaller file, and a slower one.")
def npz(
    plan: str, case: str, path: Path, plugin_files: tuple[str, ...], model: str | None, device: str, threads: int, compressed: bool
) -> None:
    """Make the quality images of CASE, such as "linear 1/4", of PLAN once more and write them to PATH.

    ``arr_0``, bytes (N, H, W, 3), is what evaluators of image generators read, such as that of guided-diffusion.
    """
    import torch

    from .. import plugins
    from ..errors import unknown
    from ..export import npz as file
    from ..measure import plan as plans
    from ..measure.run import quality_images

    for name in plugin_files:
        plugins.load(name)
    torch.set_num_threads(threads)
    cases = [p for p in plans.expand(plans.load(plan), device) if model in (None, p.case.model)]
    found = [p for p in cases if p.case.label == case]
    if not found:
        raise unknown("case", case, [p.case.label for p in cases])
    if len(found) > 1:
        raise click.UsageError(f"{case!r} is a case of {', '.join(sorted({p.case.model for p in found}))}; name one with --model.")
    images, count = quality_images(found[0])
    click.echo(f"{count} images: {file.write(path, images, count, compressed=compressed)}")
