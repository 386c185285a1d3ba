"""``cachemark run``: measure a plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.wording import printed
from .options import echo_json, fresh_option, json_option, moment, plan_options, refuse_alone, refuse_together, report_option, span
from .remedies import runnable

if TYPE_CHECKING:
    from ..analysis.answers import Answer
    from ..workflows.results import Run
    from ..workflows.session import Machine
    from ..workflows.until_decided import Interim

MOST_ANSWERS = 4  # lines of answers


@click.command()
@plan_options
@report_option
@fresh_option
@click.option("--carry-quality", is_flag=True,
              help="With --fresh: reuse the quality values of an earlier run for cases that still produce the same tokens.")
@click.option("--budget", callback=span, metavar="TIME",
              help="Finish within a time such as 6h or 90min: the most important cases first, the others are not reached.")
@click.option("--deadline", "until", callback=moment, metavar="MOMENT", help="Finish by 06:00, or by an ISO 8601 moment.")
@click.option("--until-decided", is_flag=True,
              help="Double the samples until every method is shown to be as good as the full cache, or worse; --budget and --deadline "
                   "stop the doubling.")
@json_option
def run(
    plan: str, store_url: str, plugin_files: tuple[str, ...], methods: tuple[str, ...], machine: Machine, report_path: Path | None,
    fresh: bool, carry_quality: bool, budget: float | None, until: float | None, until_decided: bool, as_json: bool,
) -> None:
    """Measure a plan and store every result.

    PLAN is the name of a shipped plan (see `cachemark list plans`) or a TOML file. Cases that the store already holds, measured by the
    same code on the same machine and software, are not run again. Ctrl-C keeps every completed case; the same command resumes from there.
    Methods of --plugin files join every block they can run in.
    """
    from ..workflows.run import run as measure
    from ..workflows.until_decided import until_decided as measure_until_decided
    from .progress import Follower

    refuse_together({"--until-decided": ("--carry-quality",)})
    refuse_alone("--carry-quality", "--fresh", "without --fresh quality is reused anyway.")
    seconds = min((limit for limit in (budget, until) if limit is not None), default=None)
    where: dict[str, Any] = {"store": store_url, "machine": machine, "plugins": plugin_files, "methods": methods, "fresh": fresh}
    with Follower() as follower:
        if until_decided:
            minutes = None if seconds is None else seconds / 60
            measured = measure_until_decided(plan, minutes=minutes, watcher=follower, on_interim=_print_interim, **where).run
        else:
            measured = measure(plan, carry_quality=carry_quality or not fresh, seconds=seconds, watcher=follower, **where)
    _conclude(measured, write_report(measured, report_path), as_json)


def _print_interim(interim: Interim) -> None:
    """Print one line on standard error for each interim analysis."""
    states = ((interim.qualified, "shown to be as good"), (interim.disqualified, "shown to be worse"), (interim.open, "open"))
    words = [f"{len(titles)} {word}" for titles, word in states if titles]
    undecided = f": {', '.join(interim.open)}" if interim.open else ""
    click.echo(printed(f"{interim.samples} samples: {', '.join(words)}{undecided}."), err=True)


def write_report(run: Run, path: Path | None) -> Path | None:
    """Print the notes of a run on standard error, write its report where one is asked for, and return the report's path."""
    for note in run.notes:
        click.echo(note, err=True)
    return run.report(path).path if path else None


def refuse_empty(run: Run) -> None:
    """Raise NothingMeasured for a run in which neither a full cache nor a method has values."""
    from ..core.errors import NothingMeasured

    compared = [o for o in run.outcomes if o.case.role in ("baseline", "candidate")]
    if not any(o.ok for o in compared or run.outcomes):
        raise NothingMeasured("No case of the plan was measured: neither a full cache nor a method has values.",
                              remedy="See the reasons above, or `cachemark show`.")


def print_path(report: Path | None) -> None:
    if report is not None:
        click.echo(f"Report: {report}")


def _conclude(run: Run, report: Path | None, as_json: bool) -> None:
    """Print the result; a run that measured nothing that was asked for, or did not reach it, is a failure."""
    from ..core.errors import NothingMeasured

    assert run.measured is not None
    ran, carried = run.measured.ran, run.measured.carried
    failed, late = [o for o in ran if not o.ok], [o for o in ran if o.status == "not_reached"]
    if as_json:
        echo_json({"run": run.id, "ran": len(ran), "skipped": carried, "report": report,
                   "not_ok": [{"case": o.case.label, "status": str(o.status)} for o in failed],
                   "answers": [_answer_data(model, answer) for model, answer in run.answers.items()]})
    else:
        click.echo(f"Run {run.id}: {len(ran) - len(failed)} measured, {len(failed)} failed, {carried} skipped.")
        print_path(report)
    refuse_empty(run)
    if not as_json:
        _print_answers(run.answers)
    if late:
        raise NothingMeasured(f"Not reached, so that nothing is known of them: {', '.join(o.case.title for o in late)}.",
                              remedy="The same command goes on with them.")


def _answer_data(model: str, answer: Answer) -> dict[str, Any]:
    """An answer as data; ``method`` and ``budget`` are those of the full cache where no other is recommended."""
    row = answer.row
    return {"model": model, "answer": answer.text, "method": row.method if row else "full", "budget": str(row.case.budget) if row else "1"}


def _print_answers(answers: Mapping[str, Answer]) -> None:
    """Print which cache to use, one line for each model, and what the lines mean."""
    from .progress import plain

    first_answers = list(answers.items())[:MOST_ANSWERS]
    for model, answer in first_answers:
        click.echo(f"{plain(model)}: {plain(answer.text)}")
    if first_answers:
        more = f"{len(answers) - len(first_answers)} more models stand in the report. " if len(answers) > len(first_answers) else ""
        meaning = "Speeds (×) are ratios to this run's full cache, with their intervals; `cachemark report` shows the images."
        click.echo(runnable(f"{more}{meaning}"))
