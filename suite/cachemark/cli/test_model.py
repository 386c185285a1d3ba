"""``cachemark test-model``: whether a model is to every method what the interface says."""

from __future__ import annotations

import click

from .options import json_option
from .proofs import show


@click.command("test-model")
@click.argument("model", metavar="NAME|FILE")
@click.option("--weights", default="", help="Weights to load it with, where it names files.  [default: those that it has]")
@click.option("--decoder-weights", default="", help="The same of its image tokenizer.")
@json_option
def test_model(model: str, weights: str, decoder_weights: str, as_json: bool) -> None:
    """Hold a model to what the interface says: NAME, or all models of a Python FILE.

    Its entry says what is loaded, a sample is the same in any batch and under any random numbers of torch, forced tokens are followed,
    attention is asked once a pass at every site and answers as the textbook's, evicting methods run on it, recorded passes are the eager
    ones, and more. Weights that are given must hold every tensor of it and no other. Leaves with 0 (passed), 1 (something found) or 4
    (nothing could be checked).
    """
    from ..workflows.proving_things import prove_model

    show(prove_model(model, weights=weights, decoder_weights=decoder_weights), as_json)
