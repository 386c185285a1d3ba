"""``cachemark test``: the checks of the kit on a method, a model or a metric."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from .options import echo_json, json_option

if TYPE_CHECKING:
    from ..kit.findings import Checked, KitProof

FOUND, NOTHING_CHECKED = 1, 4  # exit codes
MOST_SHOWN = 3  # findings of a check
MOST_LETTERS = 10_000


def _knobs(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """``NAME=VALUE`` with a value of JSON, or a text as it stands."""
    knobs: dict[str, Any] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or len(text) > MOST_LETTERS:
            raise click.BadParameter(f"{text[:40]!r} is not NAME=VALUE.")
        try:
            knobs[name] = json.loads(value)
        except (ValueError, RecursionError):
            knobs[name] = value
        if isinstance(knobs[name], float) and not math.isfinite(knobs[name]):
            raise click.BadParameter(f"{name} = {value[:40]} is not finite.")
    return knobs


@click.group()
def test() -> None:
    """Test a method, a model or a metric of your own.

    The smallest failing example of each check is printed. Exit codes: 0 passed, 1 a check failed, 4 nothing could be checked.
    """


@test.command("method")
@click.argument("method", metavar="NAME|FILE")
@click.option("--knob", "knobs", multiple=True, callback=_knobs, metavar="NAME=VALUE",
              help="Set a parameter of the method, with a value as in JSON, beside those of its budgets; repeatable.")
@json_option
def test_method(method: str, knobs: dict[str, Any], as_json: bool) -> None:
    """Test a method by the checks that the built-in ones pass.

    Give a NAME, or a Python FILE to test all of its methods. Checks: neutral parameters give the full cache bit for bit, evicting equals
    masking, the budget is kept and used at every step, the declared bytes are right, nothing is read on the host, a sample is the same in
    any batch, and more. A failure is printed with model, seed, step, layer, head, expected and actual value.
    """
    from ..workflows.prove import prove_method

    _conclude(prove_method(method, knobs=knobs), as_json)


@test.command("model")
@click.argument("model", metavar="NAME|FILE")
@click.option("--weights", default="", help="Weights to load, where the model names files.  [default: its own]")
@click.option("--decoder-weights", default="", help="Weights of its image tokenizer.")
@json_option
def test_model(model: str, weights: str, decoder_weights: str, as_json: bool) -> None:
    """Test a model against the interface that every method relies on.

    Give a NAME, or a Python FILE to test all of its models. Checks: the entry describes what is loaded, a sample is the same in any batch
    and under any state of torch's random numbers, forced tokens are followed, attention is called once per step in every layer and equals
    the textbook's, evicting methods run, captured graphs equal the eager engine, and more. Weights must hold every tensor and no other.
    """
    from ..workflows.prove import prove_model

    _conclude(prove_model(model, weights=weights, decoder_weights=decoder_weights), as_json)


@test.command("metric")
@click.argument("metric", metavar="NAME|FILE")
@json_option
def test_metric(metric: str, as_json: bool) -> None:
    """Test a metric of a plug-in on what a run relies on.

    Give a NAME, or a Python FILE to test all of its metrics. Checks: one value per image, finite and in range; the same value a second
    time, in any batch and beside other images; no image is nearer to a reference than the reference itself; nothing but
    images and its own files is read, nothing is written; the class states unit, direction and kind.
    """
    from ..workflows.prove import prove_metric

    _conclude(prove_metric(metric), as_json)


def _conclude(proofs: Sequence[KitProof], as_json: bool) -> None:
    """Print every check and exit with 0, with 1 where one failed, or with 4 where nothing could be checked."""
    from ..core.wording import printed

    if as_json:
        echo_json(proofs)
    else:
        for proof in proofs:
            click.echo("\n".join(printed(line) for line in _lines(proof)))
    if any(check.findings for proof in proofs for check in proof.checks):
        sys.exit(FOUND)
    if not all(proof.complete for proof in proofs):
        sys.exit(NOTHING_CHECKED)


def _lines(proof: KitProof) -> Iterator[str]:
    yield f"{proof.kind} {proof.name}"
    for check in proof.checks:
        yield f"  {_word(check):<8}  {check.name}"
        if check.findings:
            yield f"            asks: {check.asks}"
        for finding in check.findings[:MOST_SHOWN]:
            if finding.place:
                yield f"            at {finding.place}:"
            yield f"            expected {finding.expected}; found {finding.found}"
        if len(check.findings) > MOST_SHOWN:
            yield f"            and {len(check.findings) - MOST_SHOWN} more like that"
        if check.left_out:
            yield f"            {check.left_out}"
    passed, failed, skipped = (sum(bool(getattr(c, state)) for c in proof.checks) for state in ("passed", "findings", "left_out"))
    yield f"{len(proof.checks)} checks: {passed} passed, {failed} found something, {skipped} left out."


def _word(check: Checked) -> str:
    return "FOUND" if check.findings else "left out" if check.left_out else "passed"
