"""``cachemark check``: the gate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.verdicts import ENDED, MISSING, REGRESSED
from ..core.wording import printed
from .options import (
    Finite,
    baseline_option,
    coverage_option,
    echo_json,
    given_options,
    json_option,
    machine_options_with,
    stored_run_options,
)
from .remedies import runnable

if TYPE_CHECKING:
    from ..workflows.check import CheckResult
    from ..workflows.session import Machine

OF_JUDGEMENT = ("--run", "--baseline", "--threshold", "--min-coverage", "--incidents", "--propose")
OF_MACHINE = ("--device", "--threads", "--gpu", "--lock-clocks", "--memory-cap", "--executor", "--address")


@click.command()
@stored_run_options
@baseline_option
@click.option("--threshold", type=Finite(0, 100, min_open=True),
              help="Allowed relative change of a time over the full cache's.  [default: 0.15 if pairs cannot test times]")
@coverage_option
@click.option("--incidents", "register", type=click.Path(dir_okay=False, path_type=Path),
              help="Register of incidents; acknowledged or accepted ones fail only if they get worse.")
@click.option("--propose", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Without a baseline, write the run to FOLDER for acceptance, and pass.")
@click.option("--self-test", is_flag=True,
              help="Prove that the gate finds a slow-down and passes A/A tests, on this device:")
@machine_options_with(None, threads=1)
@json_option
def check(
    store_url: str, run_id: int | None, baseline: Path | None, threshold: float | None, min_coverage: float | None, register: Path | None,
    propose: Path | None, self_test: bool, machine: Machine, as_json: bool,
) -> None:
    """Check a run against its baseline; the exit code is the verdict.

    The newest comparison of the same plan and code counts too, if there is one. Exit codes: 0 pass, 1 regressed, 2 usage, 3 more than a
    tenth of the compared configurations not resolved, 4 nothing or too little measured, 5 infrastructure. Bytes, tokens and fidelity are
    compared exactly. Times are tested in pairs by `cachemark compare`; `check` prints them, and compares their ratios to the same run's
    full cache with a fixed threshold only if the commits are unknown. --run may name a comparison.
    """
    _refuse_unused(self_test)
    if self_test:
        sys.exit(_prove(machine, store_url, as_json))
    from ..workflows.check import check as judge

    result = judge(store_url, run=run_id, baseline=baseline, threshold=threshold, min_coverage=min_coverage,
                  register=register, propose=propose)
    if as_json:
        echo_json(_data(result))
    else:
        _print(result)
    sys.exit(result.exit_code)


def _refuse_unused(self_test: bool) -> None:
    """Refuse options that have no effect with, or without, --self-test."""
    if idle := [name for name in given_options() if name in (OF_JUDGEMENT if self_test else OF_MACHINE)]:
        if self_test:
            raise click.UsageError(f"{' and '.join(idle)} cannot be combined with --self-test. Leave one out.")
        raise click.UsageError(f"{' and '.join(idle)} need --self-test: a check of a stored run measures nothing. "
                               f"Leave out {' and '.join(idle)}.")


def _prove(machine: Machine, store_url: str, as_json: bool) -> int:
    """Run the self-test on the given device, else on the newest run's device, and return the exit code."""
    from ..workflows.prove import newest_device, self_test

    proofs = self_test(machine if machine.device else replace(machine, device=newest_device(store_url)),
                       lambda step: click.echo(f"Self-test: {step}", err=True))
    if as_json:
        echo_json(proofs)
    else:
        for proof in proofs:
            click.echo(f"{'passed' if proof.passed else 'FAILED'}: {proof.name}: {proof.reason}")
    return 0 if all(proof.passed for proof in proofs) else 1


def _data(result: CheckResult) -> dict[str, Any]:
    judgement, night = result.judgement, result.incidents
    data: dict[str, Any] = {"exit_code": result.exit_code, "coverage": judgement.comparison.coverage if judgement.comparison else None,
                            "rows": judgement.all_rows, "standing": judgement.standing}
    if result.proposed is not None:
        data["proposed"] = result.proposed
    if night is not None:
        data["incidents"] = {"notify": night.notify, "known": night.known, "fixed": night.fixed}
    return data


def _print(result: CheckResult) -> None:
    for line in _lines(result):
        click.echo(runnable(printed(line)))


def _lines(result: CheckResult) -> Iterator[str]:
    judgement = result.judgement
    if judgement.comparison is not None:
        yield from judgement.comparison.summary()
        for row in (*judgement.comparison.of(REGRESSED), *judgement.comparison.of(MISSING)):
            yield f"  {row.verdict}: {row.label}, {row.metric}: {row.then} → {row.now}. {row.reason}".rstrip()
    yield from judgement.remarks()
    if judgement.night is not None:
        for row in judgement.night.tally.regressed:
            yield f"  {judgement.night.tally.word(row)}: {row.label}, {row.metric}: {row.reason}"
    if result.incidents is not None:
        yield from result.notifications()
        for word, incidents in (("Known", result.incidents.known), ("Fixed", result.incidents.fixed)):
            if incidents:
                yield f"{word}: {', '.join(f'{i.key} ({i.state})' for i in incidents)}."
    if result.proposed is not None:
        yield f"No baseline yet. Proposed: {result.proposed}. To accept it: cachemark baseline save --run {result.run.id}"
    yield f"{ENDED[result.exit_code]} (exit code {result.exit_code})."
    if judgement.baseline is not None:
        yield f"Baseline: {judgement.baseline}"
