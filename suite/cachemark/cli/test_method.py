"""``cachemark test-method``: the checks that our own methods are held to, on anybody's."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from .options import json_option
from .proofs import show

MOST_LETTERS = 10_000


def knob(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """``NAME=VALUE`` with a value of JSON, or a text as it stands."""
    found: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals or not name.isidentifier() or len(each) > MOST_LETTERS:
            raise click.BadParameter(f"{each[:40]!r} is not NAME=VALUE.")
        try:
            found[name] = json.loads(text)
        except (ValueError, RecursionError):
            found[name] = text
        if isinstance(found[name], float) and not math.isfinite(found[name]):
            raise click.BadParameter(f"{name} = {text[:40]} is not finite.")
    return found


@click.command("test-method")
@click.argument("method", metavar="NAME|FILE")
@click.option("--knob", "knobs", multiple=True, callback=knob, metavar="NAME=VALUE",
              help="Set a knob of the method, with a value as in JSON, beside those of its budgets; repeatable.")
@json_option
def test_method(method: str, knobs: dict[str, Any], as_json: bool) -> None:
    """Hold a method to the checks that ours are held to: NAME, or all methods of a Python FILE.

    Neutral knobs are the full cache bit for bit, evicting is masking, the budget is kept and used at every step, bytes are what is
    declared, nothing is read on the host, a sample is the same in any batch, and more. Of what is wrong the smallest example is printed:
    model, seed, step, layer, head, expected and found. Leaves with 0 (passed), 1 (something found) or 4 (nothing could be checked).
    """
    from ..workflows.proving_things import prove_method

    show(prove_method(method, knobs=knobs), as_json)
