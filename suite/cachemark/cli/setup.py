"""``cachemark doctor``, ``calibrate`` and ``weights``: check the machine and get files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from .options import Integer, echo_json, echo_rows, grid_option, json_option, say, weights_options

if TYPE_CHECKING:
    from ..workflows.verify import Verified
    from ..workflows.weights import Publication

TOPICS = {"cpu": "CPU", "cuda": "CUDA", "gpus": "GPUs", "weights": "bundled weights", "missing": "missing packages"}
WIDTH = 100  # columns of a line of `weights list`


@click.command()
@click.option("--quick", is_flag=True, help="Do not measure rates.")
@json_option
def doctor(quick: bool, as_json: bool) -> None:
    """Check the devices, rates and packages of this machine.

    Prints devices, drivers and the torch they allow, rates (bandwidth and peak FLOP/s) and missing packages. The advice lists everything
    that would disturb a measurement now, with a remedy.
    """
    from ..workflows.doctor import doctor as examine

    facts = examine(quick=quick)
    if as_json:
        echo_json(facts)
        return
    for name, value in facts.items():
        if isinstance(value, dict):  # a device's own facts are read like the others
            value = {key: item for key, item in {**value, **value.get("facts", {})}.items() if key != "facts"}
        lines = [line for key, item in (value.items() if isinstance(value, dict) else enumerate(value, 1)) for line in _in_words(key, item)]
        if lines:
            say(f"{TOPICS.get(name, name)}:")
        for line in lines:
            say(f"  {line}")


def _in_words(key: object, item: object) -> Iterator[str]:
    """Yield a fact as lines: nested ones by path, lists with commas, numbers rounded; nothing of an unknown or empty one."""
    if isinstance(item, dict):
        for name, value in item.items():
            yield from _in_words(f"{key}, {name}", value)
    elif isinstance(item, bool):
        yield from _in_words(key, "yes" if item else "no")
    elif item is not None and item not in ([], ()):
        listed = ", ".join(map(str, item)) if isinstance(item, list | tuple) else f"{item:.3g}" if isinstance(item, float) else str(item)
        yield f"{str(key).replace('_', ' ')}: {listed}"


@click.command()
@click.argument("method")
@click.argument("model")
@click.option("--samples", type=Integer(1, 64), default=10, show_default=True, help="Images of the tuning seeds.")
@grid_option
@weights_options
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to measure.")
@click.option("--to", type=click.Path(dir_okay=False), help="File to write.  [default: where runs in this folder find it]")
@json_option
def calibrate(method: str, model: str, as_json: bool, **options: Any) -> None:
    """Compute the calibration data that a method needs for a model.

    METHOD's data are measured on the tuning seeds with the full cache and written to a file. A run looks for the calibration of its weights
    in the folder `calibrations` (or $CACHEMARK_CALIBRATIONS), then in the package. A case contains the digest of the calibration.
    """
    from ..workflows.calibrate import calibrate as measure

    measured = measure(method, model, **options)
    calibrated = measured.facts
    if as_json:
        echo_json({"method": method, "calibration": measured.digest, "file": str(measured.path), **calibrated})
        return
    say(f"{method} on {model}, weights {str(calibrated['weights'])[:12]}: {calibrated['samples']} samples of {calibrated['seeds']}, "
        f"full cache, {calibrated['seconds']} s")
    if str(calibrated["weights"]).startswith("random:"):
        say("These weights are random: the calibration does not apply to a trained model.")
    say(f"calibration {measured.digest}, {measured.path.stat().st_size} bytes: {measured.path}")


# -- weights ----------------------------------------------------------------------------------------------------------
@click.group()
def weights() -> None:
    """List, fetch and verify published weights."""


@weights.command("list")
@click.argument("models", nargs=-1)
@json_option
def list_weights(models: tuple[str, ...], as_json: bool) -> None:
    """List source, files, size and license of weights.

    Unknown values are question marks. Nothing is fetched.
    """
    from ..workflows.weights import weights_list

    rows = weights_list(models)
    if as_json:
        echo_json([row.to_json() for row in rows])
        return
    for model, group in groupby(rows, lambda row: row.model):
        own = [*group]
        sizes = [row.about_mib or row.tensors_mib for row in own if not _is_in_weights(row, own)]
        unknown = f", and {sizes.count(None)} of unknown size" if None in sizes else ""
        say(f"{model}: in all about {sum(filter(None, sizes)) / 1024:.1f} GiB{unknown}")
        for row in own:
            for line in _publication_lines(row, in_weights=_is_in_weights(row, own)):
                say(line)


def _is_in_weights(row: Publication, rows: Sequence[Publication]) -> bool:
    """Return whether a file is one of those of the weights of its model."""
    return row.key != "weights" and any((row.model, row.origin, row.files) == (other.model, other.origin, other.files)
                                        for other in rows if other.key == "weights")


def _publication_lines(row: Publication, *, in_weights: bool) -> Iterator[str]:
    gated = {True: "gated", False: "not gated", None: "gated?"}[row.origin.gated]
    size = f"about {row.about_mib} MiB" if row.about_mib else f"tensors {row.tensors_mib} MiB" if row.tensors_mib else "size ?"
    size = "in weights" if in_weights else size
    hand = "by hand" if row.steps else "fetch"
    yield f"  {row.key:<15}  {size}  license {row.origin.license or '?'}  {gated}  {hand}"
    yield from wrap(f"{row.origin.address}  {', '.join(row.files)}", WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 6,
                    break_long_words=False, break_on_hyphens=False)


@weights.command("fetch")
@click.argument("model")
@click.option("--to", default="weights", show_default=True, type=click.Path(file_okay=False), help="Folder to put them in.")
@weights_options
def fetch_weights(model: str, to: str, weights: str, decoder_weights: str) -> None:
    """Download the weights that MODEL needs from Hugging Face.

    Files that must be downloaded by hand are listed with the steps. With --weights hf:… the named weights go into the cache of
    huggingface_hub instead, where plans and commands find them by that name.

    Complete files are not downloaded again. Only this command and --fetch use the network.
    """
    from ..workflows.weights import fetch, fetch_named

    paths = fetch_named(model, weights, decoder_weights, say) if weights or decoder_weights else fetch(model, to, say=say)
    for key, path in paths.items():
        if key.endswith("weights"):
            say(f"{key} = {json.dumps(str(path))}")


@weights.command("verify")
@click.argument("model")
@weights_options
@click.option("--from", "folder", default="weights", show_default=True, type=click.Path(file_okay=False),
              help="Folder with the fetched weights.")
@json_option
def verify_weights(model: str, as_json: bool, **files: Any) -> None:
    """Check that weights belong to MODEL.

    Checks what loading checks: every name, shape and dtype, the image size, tokenizer and text encoder. Prints the SHA-256 of the files.
    """
    from ..workflows.verify import verify

    def line(row: Verified) -> str:
        return f"{row.key}  {row.path}  SHA-256 {row.sha256}"

    echo_rows(verify(model, **files), as_json, line, "No weights.")
