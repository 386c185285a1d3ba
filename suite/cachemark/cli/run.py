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
@click.option("--reuse-quality", is_flag=True,
              help="With --fresh: reuse quality values of cases whose tokens did not change.")
@click.option("--budget", callback=span, metavar="TIME",
              help="Finish within a time, e.g. 6h or 90min; important cases run first.")
@click.option("--deadline", "until", callback=moment, metavar="MOMENT", help="Finish by 06:00, or by an ISO 8601 time.")
@click.option("--until-decided", is_flag=True,
              help="Double the samples until every method is non-inferior to the full cache, or worse.")
@json_option
def run(
    plan: str, store_url: str, plugin_files: tuple[str, ...], methods: tuple[str, ...], machine: Machine, report_path: Path | None,
    fresh: bool, reuse_quality: bool, budget: float | None, until: float | None, until_decided: bool, as_json: bool,
) -> None:
    """Measure a plan and store every result.

    PLAN is the name of a shipped plan (see `cachemark list plans`) or a TOML file. Cases that the store already holds, measured by the
    same code on the same machine and software, are not run again. Ctrl-C keeps every completed case; the same command resumes from there.
    Methods of --plugin files join every block they can run in.
    """
    from ..workflows.run import run as measure
    from ..workflows.until_decided import until_decided as measure_until_decided
    from .progress import Follower

    refuse_together({"--until-decided": ("--reuse-quality",)})
    refuse_alone("--reuse-quality", "--fresh", "without --fresh quality is reused anyway.")
    seconds = min((limit for limit in (budget, until) if limit is not None), default=None)
    where: dict[str, Any] = {"store": store_url, "machine": machine, "plugins": plugin_files, "methods": methods, "fresh": fresh}
    with Follower() as follower:
        if until_decided:
            minutes = None if seconds is None else seconds / 60
            measured = measure_until_decided(plan, minutes=minutes, watcher=follower, on_interim=_print_interim, **where).run
        else:
            measured = measure(plan, reuse_quality=reuse_quality or not fresh, seconds=seconds, watcher=follower, **where)
    _conclude(measured, write_report(measured, report_path), as_json)


def _print_interim(interim: Interim) -> None:
    """Print one line on standard error for each interim analysis."""
    states = ((interim.qualified, "shown to be as good"), (interim.disqualified, "shown to be worse"), (interim.open, "open"))
    words = [f"{len(titles)} {word}" for titles, word in states if titles]
    undecided = f": {', '.join(interim.open)}" if interim.open else ""
    click.echo(printed(f"{interim.samples} samples: {', '.join(words)}{undecided}."), err=True)


def write_report(run: Run, path: Path | None) -> Path | None:
    """Print the notes of a run, write its report to ``path`` if given, and return the report's path."""
    for note in run.notes:
        click.echo(note, err=True)
    return run.report(path).path if path else None


def refuse_empty(run: Run) -> None:
    """Raise NothingMeasured if no full cache and no method has results."""
    from ..core.errors import NothingMeasured

    compared = [o for o in run.outcomes if o.case.role in ("baseline", "candidate")]
    if not any(o.ok for o in compared or run.outcomes):
        raise NothingMeasured("No case of the plan produced results.",
                              remedy="See the errors above, or run `cachemark show`.")


def print_path(report: Path | None) -> None:
    if report is not None:
        click.echo(f"Report: {report}")


def _conclude(run: Run, report: Path | None, as_json: bool) -> None:
    """Print the result; fail if nothing was measured, or if cases were not reached."""
    from ..core.errors import NothingMeasured

    assert run.measured is not None
    ran, reused = run.measured.ran, run.measured.reused
    failed, late = [o for o in ran if not o.ok], [o for o in ran if o.status == "not_reached"]
    if as_json:
        echo_json({"run": run.id, "ran": len(ran), "skipped": reused, "report": report,
                   "not_ok": [{"case": o.case.label, "status": str(o.status)} for o in failed],
                   "answers": [_answer_data(model, answer) for model, answer in run.answers.items()]})
    else:
        click.echo(f"Run {run.id}: {len(ran) - len(failed)} measured, {len(failed)} failed, {reused} skipped.")
        print_path(report)
    refuse_empty(run)
    if not as_json:
        _print_answers(run.answers)
    if late:
        raise NothingMeasured(f"Not run before the deadline: {', '.join(o.case.title for o in late)}.",
                              remedy="Rerun the same command to continue.")


def _answer_data(model: str, answer: Answer) -> dict[str, Any]:
    """Return an answer as data; without a recommended row, ``method`` and ``budget`` are the full cache's."""
    row = answer.row
    return {"model": model, "answer": answer.text, "method": row.method if row else "full", "budget": str(row.case.budget) if row else "1"}


def _print_answers(answers: Mapping[str, Answer]) -> None:
    """Print the recommended cache of each model."""
    from .progress import plain

    first_answers = list(answers.items())[:MOST_ANSWERS]
    for model, answer in first_answers:
        click.echo(f"{plain(model)}: {plain(answer.text)}")
    if first_answers:
        more = f"{len(answers) - len(first_answers)} more models are in the report. " if len(answers) > len(first_answers) else ""
        meaning = "Speeds (×) are ratios to this run's full cache, with their intervals; `cachemark report` shows the images."
        click.echo(runnable(f"{more}{meaning}"))
