"""``cachemark calibrate``: what a method asks to be known of a model, measured once."""

from __future__ import annotations

import click

from .options import echo_json, json_option, printed

MOST_SAMPLES = 64  # of the tuning seeds


@click.command()
@click.argument("method")
@click.argument("model")
@click.option("--samples", type=click.IntRange(1, MOST_SAMPLES), default=10, show_default=True, help="Images of the tuning seeds.")
@click.option("--weights", default="", help="A checkpoint of MODEL.  [default: the packaged one, else random]")
@click.option("--decoder-weights", default="", help="Its image tokenizer.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to measure.")
@click.option("--to", type=click.Path(dir_okay=False), help="File to write.  [default: where runs in this folder find it]")
@json_option
def calibrate(
    method: str, model: str, samples: int, weights: str, decoder_weights: str, device: str, to: str | None, as_json: bool,
) -> None:
    """Measure what a method needs to know about a model.

    METHOD's facts about MODEL are measured on the tuning seeds under the full cache and written to a file. A run takes the calibration of
    its weights from the folder `calibrations`, or from the one that CACHEMARK_CALIBRATIONS names, before one that comes with the package. A
    case names it by its digest, so other facts are another case.
    """
    from ..workflows.calibrate import calibrate as measure

    measured = measure(method, model, samples=samples, weights=weights, decoder_weights=decoder_weights, device=device, to=to)
    facts = measured.facts
    if as_json:
        echo_json({"method": method, "calibration": measured.digest, "file": str(measured.path), **facts})
        return
    click.echo(printed(f"{method} on {model}, weights {str(facts['weights'])[:12]}: {facts['samples']} samples of {facts['seeds']}, "
                       f"full cache, {facts['seconds']} s"))
    if str(facts["weights"]).startswith("random:"):
        click.echo("These weights are random: what was measured says nothing about a trained model.")
    click.echo(printed(f"calibration {measured.digest}, {measured.path.stat().st_size} bytes: {measured.path}"))
