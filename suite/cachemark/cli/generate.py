"""``cachemark generate``: images of a model, with or without a cache method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import (
    FILE,
    Finite,
    Integer,
    Line,
    echo_json,
    fetch_option,
    grid_option,
    image_output,
    json_option,
    plugin_option,
    say,
    weights_options,
)

if TYPE_CHECKING:
    from ..workflows.generated import Generated

MOST_IMAGES = 50_000
FULL, NATIVE, SEQUENTIAL = "full", "native", "sequential"


def sampling(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> str | dict[str, float]:
    """Parse ``greedy``, or ``temperature=0.9`` and others as changes of the preset ``paper``."""
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    changes = dict[str, float]()
    for name, equals, value in (text.partition("=") for text in texts):
        try:
            changes[name] = int(value) if value.isdecimal() else float(value)
        except ValueError:
            raise click.BadParameter(f"{(name + equals + value)[:80]!r} is neither NAME=NUMBER nor the only preset; "
                                     "write temperature=0.9, or greedy alone.") from None
    return changes or "paper"


@click.command()
@click.argument("model")
@click.option("--prompt", "prompts", multiple=True, type=Line(), help="Text of an image; repeatable.")
@click.option("--label", "labels", multiple=True, type=Integer(0), help="Class of an image; repeatable.")
@click.option("--seed", "seeds", multiple=True, type=Integer(0, 2**31 - 1), help="Seed of an image; repeatable.  [default: 0, 1, …]")
@click.option("--images", type=Integer(1, MOST_IMAGES),
              help="Number of images.  [default: one per prompt, label or seed]")
@click.option("--method", default=FULL, show_default=True, help="Cache method.")
@click.option("--budget", metavar="FRACTION", help="Fraction of the full cache that is kept.  [default: the method's own sizes, else 1/2]")
@click.option("--codec", default=NATIVE, show_default=True, help="KV quantization.")
@click.option("--decoder", default=SEQUENTIAL, show_default=True, help="Parallel decoder.")
@click.option("--guidance", type=Finite(), help="Scale of classifier-free guidance.  [default: the model's]")
@click.option("--sampling", multiple=True, callback=sampling, metavar="PRESET|NAME=VALUE",
              help="Sampling preset, or changes such as temperature=0.9; repeatable.  [default: paper]")
@click.option("--batch", type=Integer(1, MOST_IMAGES), help="Images at a time.  [default: all; of a sample batch 64]")
@grid_option
@weights_options
@fetch_option
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to generate.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True,
              help="Number format of the transformer.")
@click.option("--engine", type=click.Choice(["auto", "eager", "graph", "reference"]), default="eager", show_default=True,
              help="How forward passes run; graph captures them on a GPU.")
@plugin_option
@click.option("--compare", is_flag=True, help="Generate with the full cache too, and put its images to the left.")
@click.option("-o", "--output", "path", type=FILE, callback=image_output, default="generated.png", show_default=True,
              help="PNG file of the grid, or npz file of a sample batch for evaluators.")
@json_option
def generate(path: Path, images: int | None, seeds: tuple[int, ...], compare: bool, as_json: bool, **request: Any) -> None:
    """Generate images and save them as one PNG, or as a sample batch.

    MODEL is a name of `cachemark list models`. A single prompt or label is used for all seeds. Prints seconds, tokens/s of both halves and
    bytes of one generation without a warm-up; `cachemark run` measures speed with repeats.
    """
    from ..workflows.generate import generate as generate_images

    if images and seeds:
        raise click.UsageError("--images and --seed cannot be combined. Leave one of them out.")
    if compare and (request["method"], request["codec"], request["decoder"]) == (FULL, NATIVE, SEQUENTIAL):
        raise click.UsageError("--compare needs something to compare with the full cache. Add --method, --codec or --decoder.")
    request |= {"prompts": request["prompts"] or None, "labels": request["labels"] or None, "seeds": list(seeds) or images}
    generations = generate_images(path=path, compare=compare, **request)
    if as_json:
        echo_json({"file": path, "generations": [_values(each) for each in generations]})
        return
    width = max(len(each.case.title) for each in generations)
    for each in generations:
        say(_cost_line(each, width))
    say(f"{path}: {generations[0].case.label} to the left, {generations[1].case.label} to the right" if compare else str(path))


def _values(images: Generated) -> dict[str, Any]:
    """Return the costs of a generation, under the names of the metrics."""
    first, last = images.tokens_per_s or (None, None)
    return {"case": images.case.label, "images": len(images.labels), "labels": images.labels, "seeds": images.seeds,
            "seconds": images.seconds, "tokens_per_s_first": first, "tokens_per_s_last": last, "kv_logical": images.kv_bytes,
            "kv_state": images.state_bytes, "true_budget": images.true_budget}


def _cost_line(images: Generated, width: int) -> str:
    """Return the costs of a generation on one line."""
    rates = "—" if images.tokens_per_s is None else "{:.4g} | {:.4g} tokens/s (first | last half)".format(*images.tokens_per_s)
    kv = "" if images.kv_bytes is None else f"  KV {images.kv_bytes / 2**20:.2f} MiB"
    kept = f"  keeps {images.other_budget}" if images.other_budget else ""
    return f"{images.case.title:<{width}}  {images.seconds:.2f} s  {rates}{kv}  state {images.state_bytes / 2**20:.2f} MiB{kept}"
