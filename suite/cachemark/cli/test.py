"""``cachemark test``: the checks of the kit on a method, a model or a metric."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from .options import echo_json, json_option

if TYPE_CHECKING:
    from ..kit.findings import KitReport, KitResult

FAILED, NOTHING_CHECKED = 1, 4  # exit codes
MOST_SHOWN = 3  # findings of a check
LONGEST_PARAMETER = 10_000  # characters


def _parameters(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Return the parameters of ``NAME=VALUE``; a value that is not JSON is a string."""
    parameters: dict[str, Any] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or len(text) > LONGEST_PARAMETER:
            raise click.BadParameter(f"{text[:40]!r} is not NAME=VALUE.")
        try:
            parameters[name] = json.loads(value)
        except (ValueError, RecursionError):
            parameters[name] = value
        if isinstance(parameters[name], float) and not math.isfinite(parameters[name]):
            raise click.BadParameter(f"{name} = {value[:40]} is not finite.")
    return parameters


@click.group()
def test() -> None:
    """Test a method, a model or a metric of your own.

    A failed check prints the smallest example that shows it. Exit codes: 0 passed, 1 a check failed, 4 nothing could be checked.
    """


@test.command("method")
@click.argument("method", metavar="NAME|FILE")
@click.option("--parameter", "parameters", multiple=True, callback=_parameters, metavar="NAME=VALUE",
              help="Set a parameter of the method to a JSON value; repeatable.")
@json_option
def test_method(method: str, parameters: dict[str, Any], as_json: bool) -> None:
    """Test a method by the checks that the built-in methods pass.

    Give a NAME, or a Python FILE to test all of its methods. Checks: neutral parameters equal the full cache bit for bit, evicting equals
    masking, the budget is kept and used at every step, the declared bytes are right, nothing is read on the host, a sample is the same in
    any batch, and more. A failure prints model, seeds, step, layer, head, and the expected and actual value.
    """
    from ..workflows.prove import prove_method

    _report(lambda on_check: prove_method(method, parameters=parameters, on_check=on_check), as_json)


@test.command("model")
@click.argument("model", metavar="NAME|FILE")
@click.option("--weights", default="", help="Weights to load.  [default: the model's own]")
@click.option("--decoder-weights", default="", help="Weights of its image tokenizer.")
@json_option
def test_model(model: str, weights: str, decoder_weights: str, as_json: bool) -> None:
    """Test a model against the interface that every method relies on.

    Give a NAME, or a Python FILE to test all of its models. Checks: the entry describes the loaded model, a sample is the same in any
    batch and under any state of torch's random numbers, forced tokens are followed, attention is called once per step in every layer and
    equals a reference, evicting methods run, captured graphs equal eager steps, and more. Weights must contain every tensor and no other.
    """
    from ..workflows.prove import prove_model

    _report(lambda on_check: prove_model(model, weights=weights, decoder_weights=decoder_weights, on_check=on_check), as_json)


@test.command("metric")
@click.argument("metric", metavar="NAME|FILE")
@json_option
def test_metric(metric: str, as_json: bool) -> None:
    """Test a metric of a plug-in.

    Give a NAME, or a Python FILE to test all of its metrics. Checks: one value per image, finite and in range; the same value a second
    time, in any batch and with other images; no image is closer to a reference than the reference itself; it reads only its input and its
    own files and writes nothing; the class sets unit, direction and kind.
    """
    from ..workflows.prove import prove_metric

    _report(lambda on_check: prove_metric(metric, on_check=on_check), as_json)


def _report(prove: Callable[[Callable[[str, KitResult], None]], list[KitReport]], as_json: bool) -> None:
    """Print each result as it arrives, then a summary; exit with 1 if a check failed, with 4 if none ran."""
    from ..core.wording import printed

    names: list[str] = []

    def show(name: str, result: KitResult) -> None:
        if as_json:
            return
        lines = [] if name in names else [name]
        names[:] = [name]
        for line in (*lines, *_lines(result)):
            click.echo(printed(line))

    reports = prove(show)
    if as_json:
        echo_json(reports)
    else:
        for report in reports:
            passed, failed, skipped = (sum(bool(getattr(c, state)) for c in report.checks) for state in ("passed", "findings", "skipped"))
            click.echo(f"{report.kind} {report.name}: {passed} passed, {failed} failed, {skipped} skipped")
    if any(check.findings for report in reports for check in report.checks):
        sys.exit(FAILED)
    if not all(report.passed for report in reports):
        sys.exit(NOTHING_CHECKED)


def _lines(result: KitResult) -> Iterator[str]:
    yield f"  {'FAILED' if result.findings else 'skipped' if result.skipped else 'passed':<7}  {result.name}"
    if result.findings:
        yield f"           {result.requirement}"
    for finding in result.findings[:MOST_SHOWN]:
        if finding.location:
            yield f"           at {finding.location}:"
        yield f"           expected {finding.expected}; got {finding.actual}"
    if len(result.findings) > MOST_SHOWN:
        yield f"           and {len(result.findings) - MOST_SHOWN} more"
    if result.skipped:
        yield f"           {result.skipped}"
