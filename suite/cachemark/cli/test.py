"""``cachemark new`` and ``test``: create a template; check a method, a model, a metric or the gate."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .apart import Apart
from .options import FOLDER, echo_json, echo_rows, json_option, machine_options_with, say, weights_options

if TYPE_CHECKING:
    from ..kit.findings import KitReport, KitResult
    from ..workflows.new import Thing
    from ..workflows.session import Machine

FAILED, NOTHING_CHECKED = 1, 4  # exit codes
MOST_SHOWN = 3  # findings of a check
LONGEST_PARAMETER = 10_000  # characters


# -- new --------------------------------------------------------------------------------------------------------------
@click.command()
@click.argument("thing", type=click.Choice(["method", "model", "metric"]), metavar="method|model|metric")
@click.argument("name", metavar="NAME")
@click.option("--folder", type=FOLDER, default=".", show_default=True, help="Parent folder of the package.")
def new(thing: Thing, name: str, folder: Path) -> None:
    """Create a template package for a method, model or metric.

    Writes a working example called NAME, its test and a pyproject with its entry point into a new folder; nothing is overwritten. The
    example passes `cachemark test method`, `test model` or `test metric` as it is.
    """
    from ..workflows.new import start

    files = start(thing, name, folder)
    for file in files:
        say(str(file))
    say("Change it, test it and measure it:")
    say(f"  cachemark test {thing} {files[2]}")
    if thing != "model":
        say(f"  cachemark run demo --plugin {files[2]} --store {name}.sqlite --report {name}.html")


# -- test -------------------------------------------------------------------------------------------------------------
@click.group()
def test() -> None:
    """Test a method, a model or a metric of your own, or the gate.

    A failed check prints the smallest example that shows it. Exit codes: 0 passed, 1 a check failed, 4 nothing could be checked.
    """


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
    _report("prove_method", method, as_json, parameters=parameters)


@test.command("model")
@click.argument("model", metavar="NAME|FILE")
@weights_options
@json_option
def test_model(model: str, as_json: bool, **weights: str) -> None:
    """Test a model against the interface that every method relies on.

    Give a NAME, or a Python FILE to test all of its models. Checks: the entry describes the loaded model, a sample is the same in any
    batch and under any state of torch's random numbers, forced tokens are followed, attention is called once per step in every layer and
    equals a reference, evicting methods run, captured graphs equal eager steps, and more. Weights must contain every tensor and no other.
    """
    _report("prove_model", model, as_json, **weights)


@test.command("metric")
@click.argument("metric", metavar="NAME|FILE")
@json_option
def test_metric(metric: str, as_json: bool) -> None:
    """Test a metric of a plug-in.

    Give a NAME, or a Python FILE to test all of its metrics. Checks: one value per image, finite and in range; the same value a second
    time, in any batch and with other images; no image is closer to a reference than the reference itself; it reads only its input and its
    own files and writes nothing; the class sets unit, direction and kind.
    """
    _report("prove_metric", metric, as_json)


@test.command("gate")
@machine_options_with(threads=1)
@json_option
def test_gate(machine: Machine, as_json: bool) -> None:
    """Test that the gate finds a slowdown on this device.

    Measures a model whose second side is slowed down, an A/A test, and an empty comparison. Exactly the first must be reported.
    """
    from ..workflows.prove import self_test

    proofs = self_test(machine, lambda step: say(f"Self-test: {step}", err=True))
    echo_rows(proofs, as_json, lambda proof: f"{'passed' if proof.passed else 'FAILED'}: {proof.name}: {proof.reason}", "")
    if not all(proof.passed for proof in proofs):
        raise SystemExit(FAILED)


def _report(workflow: str, named: str, as_json: bool, **options: Any) -> None:
    """Print each result as it arrives, then a summary; exit with 1 if a check failed, with 4 if none ran."""
    from ..workflows import prove

    names: list[str] = []

    with Apart() as apart:

        def show(name: str, result: KitResult) -> None:
            new = [] if name in names else [name]
            names.extend(new)
            for line in apart.taken():
                say(line, to=apart.err)
            for line in () if as_json else (*new, *_lines(result)):
                say(line, to=apart.out)

        checks: Callable[..., list[KitReport]] = getattr(prove, workflow)
        reports = checks(named, on_check=show, **options)
    if as_json:
        echo_json(reports)
    else:
        for report in reports:
            passed, failed, skipped = (sum(bool(getattr(c, state)) for c in report.checks) for state in ("passed", "findings", "skipped"))
            say(f"{report.kind} {report.name}: {passed} passed, {failed} failed, {skipped} skipped")
    if any(check.findings for report in reports for check in report.checks):
        raise SystemExit(FAILED)
    if not all(report.passed for report in reports):
        raise SystemExit(NOTHING_CHECKED)


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
