"""``cachemark check``, ``baseline`` and ``incident``: the regression gate."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ..core.verdicts import ENDED
from ..core.wording import count, percent
from .endings import note, runnable
from .options import (
    FILE,
    FOLDER,
    MOST_DAYS,
    Finite,
    Integer,
    Line,
    all_of,
    baseline_option,
    coverage_option,
    echo_json,
    echo_rows,
    json_option,
    say,
    stored_run_options,
)

if TYPE_CHECKING:
    from ..gate.baselines import ListedBaseline
    from ..gate.incidents import Incident
    from ..workflows.check import CheckResult


# -- check ------------------------------------------------------------------------------------------------------------
@click.command()
@stored_run_options
@baseline_option
@click.option("--threshold", type=Finite(0, 1, min_open=True),
              help="Allowed relative change of a time over the full cache's.  [default: 0.15 if pairs cannot test times]")
@coverage_option
@click.option("--incidents", "register", type=FILE,
              help="Register of incidents; acknowledged or accepted ones fail only if they get worse.")
@click.option("--propose", type=FOLDER, metavar="FOLDER", help="Without a baseline, write the run to FOLDER for acceptance, and pass.")
@json_option
def check(store: str, as_json: bool, **terms: Any) -> None:
    """Check a run against its baseline; the exit code is the verdict.

    The newest comparison of the same plan and code counts too, if there is one. Exit codes: 0 pass, 1 regressed, 2 usage, 3 more than a
    tenth of the compared configurations not resolved, 4 nothing or too little measured, 5 infrastructure. Bytes, tokens and fidelity are
    compared exactly. Times are tested in pairs by `cachemark compare`; `check` prints them, and compares their ratios to the same run's
    full cache with a fixed threshold only if the commits are unknown. --run may name a comparison.
    """
    from ..workflows.check import check as judge

    result = judge(store, **terms)
    if as_json:
        echo_json(_data(result))
    else:
        for line in _lines(result):
            say(runnable(line))
    raise SystemExit(result.exit_code)


def _data(result: CheckResult) -> dict[str, Any]:
    judgement, night = result.judgement, result.incidents
    data: dict[str, Any] = {"exit_code": result.exit_code, "coverage": judgement.comparison.coverage if judgement.comparison else None,
                            "rows": judgement.all_rows, "standing": str(judgement.standing or "")}
    if result.proposed is not None:
        data["proposed"] = result.proposed
    if night is not None:
        data["incidents"] = {"notify": night.notify, "known": night.known, "fixed": night.fixed}
    return data


def _lines(result: CheckResult) -> Iterator[str]:
    judgement = result.judgement
    yield judgement.headline if judgement.by_judge else f"{ENDED[result.exit_code]}."
    if judgement.sees:
        yield judgement.sees
    yield from judgement.open_incidents
    if judgement.comparison is not None:
        yield from judgement.comparison.details()
    yield from (f"  {line}" for line in result.failing_lines())
    yield from judgement.remarks()
    if result.incidents is not None:
        for word, incidents in (("Known", result.incidents.known), ("Fixed", result.incidents.fixed)):
            if incidents:
                yield f"{word}: {', '.join(f'{i.key} ({i.state})' for i in incidents)}."
    if result.proposed is not None:
        yield f"No baseline yet. Proposed: {result.proposed}. To accept it: cachemark baseline save --run {result.run.id}"
    yield f"Exit code {result.exit_code}."
    if judgement.baseline is not None:
        yield f"Baseline: {judgement.baseline}"


# -- baseline ---------------------------------------------------------------------------------------------------------
root_option = click.option("--root", type=FOLDER, default=Path("baselines/accepted"), callback=note, show_default=True,
                           help="Folder of the accepted baselines.")
accept_options = all_of(
    stored_run_options, root_option,
    click.option("--name", type=Line(), callback=note, help="Name of the baseline.  [default: the plan's]"),
    click.option("--days", type=Integer(0, MOST_DAYS), default=180, show_default=True, help="Days until it expires; 0: never."),
)


@click.group()
def baseline() -> None:
    """Save, replace, list and compare accepted results."""


@baseline.command()
@accept_options
@click.option("--reason", type=Line(), default="", help="Why this run is accepted; kept in the file.")
def save(**options: Any) -> None:
    """Accept a finished run as the first baseline of its name.

    Writes ROOT/<machine class>/<name>.json, which must not exist yet.
    """
    _accept("save", **options)


@baseline.command()
@accept_options
@click.option("--reason", type=Line(), required=True, help="Why its values are accepted; kept in the file.")
def promote(**options: Any) -> None:
    """Replace the baseline by a run in the same environment."""
    _accept("promote", **options)


@baseline.command()
@accept_options
@click.option("--reason", type=Line(), required=True, help="Upgraded components; kept in the file.")
def rebase(**options: Any) -> None:
    """Replace the baseline by a run in an upgraded environment.

    This starts a new series of baselines.
    """
    _accept("rebase", **options)


def _accept(how: Literal["save", "promote", "rebase"], **options: Any) -> None:
    from ..workflows.check import accept

    say(f"Baseline: {accept(how, **options)}")


@baseline.command("list")
@root_option
@json_option
def list_baselines(root: Path, as_json: bool) -> None:
    """List every baseline under ROOT."""
    from ..workflows.check import accepted

    none = runnable(f"No baseline under {root}. Save one with: cachemark baseline save")
    echo_rows(accepted(root), as_json, _baseline_line, none)


def _baseline_line(item: ListedBaseline) -> str:
    until = f", until {item.expires}" if item.expires else ""
    description = f"{item.plan}, {item.outcomes} outcomes, saved {item.saved}, series {item.series}{until}"
    return f"{item.machine_class}/{item.name}: {item.problem or f'{description}. {item.reason}'.strip()}"


@baseline.command()
@stored_run_options
@baseline_option
@click.option("--plugin", is_flag=True, help="Print the commit of the plug-in's own repository instead.")
def commit(**chosen: Any) -> None:
    """Print the commit of a run's baseline."""
    from ..workflows.check import baseline_commit

    say(baseline_commit(**chosen))


# -- incident ---------------------------------------------------------------------------------------------------------
register_option = click.option("--register", type=FILE, default=Path("baselines/incidents.json"), show_default=True,
                               help="File of incidents that `check --incidents` keeps.")
@click.group()
def incident() -> None:
    """List and acknowledge known regressions."""


@incident.command("list")
@register_option
@json_option
def list_incidents(register: Path, as_json: bool) -> None:
    """List the incidents of the register."""
    from ..workflows.check import known_incidents

    echo_rows(known_incidents(register), as_json, _incident_line, f"No incident in {register}.")


def _incident_line(item: Incident) -> str:
    change = f", {percent(item.change - 1, '+')}" if item.change else ""
    cause = f"{item.factor} {item.value}, {count(len(item.configurations), 'configuration')}"
    return f"{item.key}  {item.decision}  {item.metric}, {cause}{change}, since {item.since}"


@incident.command()
@click.argument("key")
@register_option
@click.option("--who", type=Line(), required=True, help="Name of the person who decides.")
@click.option("--link", type=Line(), default="", help="URL of the discussion.")
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), metavar="YYYY-MM-DD",
              help="The day after which it notifies again.  [default: only if it gets worse]")
def acknowledge(key: str, register: Path, who: str, link: str, until: datetime | None) -> None:
    """Record who looks after the incident KEY, and until when.

    Without --until it is accepted as it is.
    """
    from ..workflows.check import acknowledge_incident

    day = until.date() if until else None
    if day and day < datetime.now(UTC).date():
        raise click.BadParameter(f"{day} is over. Name a day from today on.", param_hint="'--until'")
    acknowledge_incident(register, key, who, day, link)
    say(f"{key}: {f'acknowledged by {who} until {day}' if day else f'accepted by {who}'}.")
