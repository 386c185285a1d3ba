"""``cachemark check``: the gate."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import coverage_option, echo_json, existing, json_option, run_option, store_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.result import Outcome
    from ..gate.incidents import IncidentNight as Told
    from ..store.rows import RunRecord
    from ..workflows.judged import RunJudgement

WORDS = {0: "Passed", 1: "Regressed", 3: "Not resolved", 4: "Too little was judged", 5: "Infrastructure"}


@click.command()
@store_option
@run_option
@click.option("--baseline", "baseline_path", type=click.Path(path_type=Path),
              help="Baseline file.  [default: the accepted one of this plan and machine class]")
@click.option("--threshold", type=click.FloatRange(min=0, min_open=True), default=0.15, show_default=True,
              help="Share by which a time, as a ratio to the same run's full cache, may change.")
@coverage_option
@click.option("--incidents", "register", type=click.Path(dir_okay=False, path_type=Path),
              help="Register of incidents; one that was acknowledged or accepted fails only where it became worse.")
@click.option("--owners", type=click.Path(dir_okay=False, path_type=Path), default=Path("owners.toml"), show_default=True,
              help="Who looks after what.")
@click.option("--self-test", is_flag=True, help="Judge nothing; prove that the gate catches a slow-down and passes equal arms.")
@json_option
def check(
    store_url: str, run_id: int | None, baseline_path: Path | None, threshold: float, min_coverage: float | None, register: Path | None,
    owners: Path, self_test: bool, as_json: bool,
) -> None:
    """Judge a run against a baseline, together with the newest comparison of the same plan and code, if there is one.

    Exit codes: 0 pass, 1 regressed, 2 usage, 3 more than a tenth of the compared cells not resolved, 4 nothing or too little measured,
    5 infrastructure. Bytes, tokens and fidelity are compared exactly; times as ratios to the same run's full cache against a fixed
    threshold, which has no known false-alarm rate. `cachemark compare` tests times in pairs, and --run may name a comparison.
    """
    if self_test:
        from .selftest import self_test as prove

        sys.exit(prove(as_json))
    from ..workflows.judged import judge, judge_comparison

    with existing(store_url) as store:
        run = store.run(run_id)
        paired = run.is_comparison
        found = judge_comparison(store, run, min_coverage) if paired else judge(store, run, baseline_path, threshold, min_coverage)
        runs = {run.id, *([found.night.run.id] if found.night else [])}
        cases = {o.case.key: o for number in sorted(runs) for o in store.outcomes(number)}
    told = _incidents(found, cases, register, run)
    code = found.exit_code if told is None or found.exit_code != 1 or told.failing else 0
    if as_json:
        echo_json(_data(found, told, code))
    else:
        _print(found, told, code, owners, run)
    sys.exit(code)


def _incidents(found: RunJudgement, outcomes: dict[str, Outcome], register: Path | None, run: RunRecord) -> Told | None:
    """The night's incidents merged into the register, which is written; None without one."""
    if register is None:
        return None
    from ..gate import incidents

    cases = {key: outcome.case for key, outcome in outcomes.items()}
    judged = [cases[key] for key in {r.case_key for r in found.rows if r.verdict not in ("not_compared", "missing", "new")} if key in cases]
    tonight = incidents.fold(incidents.findings(found.rows, cases, str(run.code.get("commit") or "")[:12]), judged)
    delta = float(found.night.stated.get("delta", 0.1)) if found.night else 0.1
    told = incidents.merge(incidents.load(register), tonight, datetime.now(UTC).date(), delta, [c.full_title for c in judged])
    incidents.save(register, told.register)
    return told


def _data(found: RunJudgement, told: Told | None, code: int) -> dict[str, Any]:
    data: dict[str, Any] = {"exit_code": code, "coverage": found.comparison.coverage if found.comparison else None,
                            "rows": [asdict(row) for row in found.rows], "standing": found.standing}
    if found.environment is not None and found.environment.alert:
        data["environment"] = str(found.environment)
    if told is not None:
        data["incidents"] = {"pages": [asdict(i) for i in told.pages], "known": [asdict(i) for i in told.known],
                             "fixed": [asdict(i) for i in told.fixed]}
    return data


def _print(found: RunJudgement, told: Told | None, code: int, owners: Path, run: RunRecord) -> None:
    if found.comparison is not None:
        for line in found.comparison.summary():
            click.echo(line)
        for row in (*found.comparison.of("regressed"), *found.comparison.of("missing")):
            click.echo(f"  {row.verdict}: {row.label}, {row.metric}: {row.then} → {row.now}. {row.reason}".rstrip())
    for line in found.beside():
        click.echo(line)
    for row in found.night.tally.regressed if found.night else ():
        click.echo(f"  {row.verdict}: {row.label}, {row.metric}: {row.reason}")
    if told is not None:
        _print_incidents(told, owners, run)
    click.echo(f"{WORDS[code]} (exit code {code}).")
    if found.baseline is not None:
        click.echo(f"Baseline: {found.baseline}")


def _print_incidents(told: Told, owners: Path, run: RunRecord) -> None:
    from ..gate import owners as people

    table = people.load(owners)
    for incident in told.pages:
        for line in people.told(incident, table, people.command(run.plan, incident)):
            click.echo(line)
    _print_names("Known", told.known)
    _print_names("Fixed", told.fixed)


def _print_names(word: str, incidents: Sequence[Any]) -> None:
    if incidents:
        click.echo(f"{word}: {', '.join(f'{i.key} ({i.state})' for i in incidents)}.")
