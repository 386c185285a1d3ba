"""``cachemark weights``: list, fetch and verify published weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ..core.wording import printed
from .options import echo_rows, json_option

if TYPE_CHECKING:
    from ..workflows.publications import Publication


@click.group()
def weights() -> None:
    """List, fetch and verify published weights."""


@weights.command("list")
@click.argument("models", nargs=-1)
@json_option
def list_weights(models: tuple[str, ...], as_json: bool) -> None:
    """List the source, files, size and license of the weights of each model.

    Unknown values are question marks. Nothing is fetched.
    """
    from ..workflows.weights import weights_list

    rows = weights_list(models)
    width = max(len(row.model) for row in rows)
    echo_rows([row.to_json() for row in rows] if as_json else rows, as_json, lambda row: _listed(row, width), "No weights.")


def _listed(row: Publication, width: int) -> str:
    gated = {True: "gated", False: "not gated", None: "gated?"}[row.origin.gated]
    nbytes = f"{row.nbytes} bytes" if row.nbytes else f"about {row.about_mib} MiB" if row.about_mib else "size ?"
    hand = "by hand" if row.steps else "fetch"
    return (f"{row.model:<{width}}  {row.key:<15}  {', '.join(row.files)}  {row.origin.address}  {nbytes}  "
            f"SHA-256 {'known' if row.sha256 else '?'}  licence {row.origin.licence or '?'}  {gated}  {hand}")


@weights.command("fetch")
@click.argument("model")
@click.option("--to", default="weights", show_default=True, type=click.Path(file_okay=False), help="Folder to put them in.")
def fetch_weights(model: str, to: str) -> None:
    """Download the weights that MODEL needs from Hugging Face.

    Files that must be downloaded by hand are listed with the steps.

    An interrupted download continues. No other command uses the network.
    """
    from ..workflows.weights import fetch

    paths = fetch(model, to, say=lambda line: click.echo(printed(line)))
    click.echo("\n".join(f"{key} = {json.dumps(str(path))}" for key, path in paths.items() if key.endswith("weights")))


@weights.command("verify")
@click.argument("model")
@click.option("--weights", default="", help="File or folder of the transformer.  [default: the fetched one]")
@click.option("--decoder-weights", default="", help="The same of the image tokenizer.")
@click.option("--from", "folder", default="weights", show_default=True, type=click.Path(file_okay=False),
              help="Folder with the fetched weights.")
@json_option
def verify_weights(model: str, weights: str, decoder_weights: str, folder: str, as_json: bool) -> None:
    """Check that weights belong to MODEL.

    Checks every name, shape and dtype, the image size, and the SHA-256 if it is published.
    """
    from ..workflows.verify import verify

    rows = verify(model, weights=weights, decoder_weights=decoder_weights, folder=folder)
    echo_rows(rows, as_json, lambda row: f"{row.key}  {row.path}  {row.covered}, {', '.join(row.dtypes)}, {row.nbytes} bytes; "
              f"{len(row.passed)} other names ignored; SHA-256 {row.sha256} ({row.published})", "No weights.")
