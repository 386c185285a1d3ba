"""``cachemark test-model``: whether a model is to every method what the interface says."""

from __future__ import annotations

import click

from .options import json_option
from .proofs import show


@click.command("test-model")
@click.argument("model", metavar="NAME|FILE")
@json_option
def test_model(model: str, as_json: bool) -> None:
    """Hold a model to what the interface says: NAME, or all models of a Python FILE.

    Its entry says what is loaded, a sample is the same in any batch and under any random numbers of torch, forced tokens are followed,
    attention is asked once a pass at every site and answers as the textbook's, evicting methods run on it, recorded passes are the eager
    ones, and more. It is loaded with the weights that it has without any being named. Leaves with 0 (passed), 1 (something found) or 4
    (nothing could be checked).
    """
    from ..workflows.proving_things import prove_model

    show(prove_model(model), as_json)
