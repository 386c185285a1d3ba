"""``cachemark calibrate``: calibration of a method for a model."""

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
    """Compute the calibration data that a method needs for a model.

    METHOD's data are measured on the tuning seeds with the full cache and written to a file. A run looks for the calibration of its weights
    in the folder `calibrations` (or $CACHEMARK_CALIBRATIONS), then in the package. A case contains the digest of the calibration.
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
        click.echo("These weights are random: the calibration does not apply to a trained model.")
    click.echo(printed(f"calibration {measured.digest}, {measured.path.stat().st_size} bytes: {measured.path}"))
