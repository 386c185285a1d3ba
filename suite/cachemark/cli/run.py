"""``cachemark run``: measure a plan."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.wording import count, printed
from .options import (
    MOST_SECONDS,
    Finite,
    echo_json,
    json_option,
    machine_options,
    plugin_option,
    refuse_alone,
    refuse_together,
    store_option,
)
from .remedies import runnable

if TYPE_CHECKING:
    from ..analysis.answers import Answer
    from ..workflows.deciding_seeds import Interim
    from ..workflows.machines import Machine
    from ..workflows.pricing import PriceList
    from ..workflows.running import Explanation
    from ..workflows.stored_run import Run

MOST_SHARES = 10_000
ANSWERS = 4  # lines of answers, below which one says what they mean
_SPANS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


_UNUSED = {
    "--dry-run": ("--explain", "--share", "--max-batch", "--until-decided", "--budget", "--deadline", "--report", "--fresh"),
    "--explain": ("--share", "--max-batch", "--until-decided", "--budget", "--deadline", "--report", "--carry-quality"),
    "--share": ("--max-batch", "--until-decided", "--budget", "--deadline", "--report", "--fresh", "--json"),
    "--max-batch": ("--until-decided", "--budget", "--deadline", "--carry-quality"),
    "--until-decided": ("--budget", "--deadline", "--carry-quality"),
}  # options that the work asked for would pass over


def _share(context: click.Context, option: click.Parameter, given: str | None) -> tuple[int, int] | None:
    """``2/8`` as (1, 8)."""
    if given is None:
        return None
    index, _, of = given.partition("/")
    if not (re.fullmatch(r"\d{1,5}/\d{1,5}", given, re.ASCII) and 1 <= int(index) <= int(of) <= MOST_SHARES):
        raise click.BadParameter(f"{given!r} is not a share; write 2/8 for the second of eight, of at most {MOST_SHARES}.")
    return int(index) - 1, int(of)


def span(context: click.Context, option: click.Parameter, given: str | None) -> float | None:
    """``6h``, ``90min`` or ``1h30m`` as seconds."""
    if given is None:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(min|[smhd])", given)
    if not parts or re.sub(r"(\d+(?:\.\d+)?)\s*(min|[smhd])", "", given).strip():
        raise click.BadParameter(f"{given!r} is not a time; write 6h, 90min or 1h30m.")
    seconds = sum(float(count) * _SPANS[unit] for count, unit in parts)
    if seconds > MOST_SECONDS:
        raise click.BadParameter(f"{given!r} is more than {MOST_SECONDS / _SPANS['d']:g} days.")
    return seconds


def moment(context: click.Context, option: click.Parameter, given: str | None) -> float | None:
    """Seconds from now until ``06:00``, today or tomorrow, or an ISO 8601 moment."""
    if given is None:
        return None
    now = datetime.now().astimezone()
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}", given):
            hour, minute = map(int, given.split(":"))
            end = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            end += timedelta(days=end <= now)
        else:
            end = datetime.fromisoformat(given).astimezone()
    except (ValueError, OverflowError):  # the latter for a time zone that leads out of the calendar
        raise click.BadParameter(f"{given!r} is not a moment; write 06:00 or 2030-01-31T06:00.") from None
    if end <= now:
        raise click.BadParameter(f"{given} is in the past.")
    if (seconds := (end - now).total_seconds()) > MOST_SECONDS:
        raise click.BadParameter(f"{given} is more than {MOST_SECONDS / _SPANS['d']:g} days from now.")
    return seconds


def page(context: click.Context, option: click.Parameter, given: Path | None) -> Path | None:
    """The path of a page that can be written, which is known before hours of work and not after."""
    if given is None:
        return None
    folder = given.parent
    if not os.path.isdir(folder):  # which says no of a name that no folder can have, too
        raise click.BadParameter(f"there is no folder {str(folder)[:200]}. Make it first, or name another file.")
    if len(os.fsencode(given.name)) > 255 or not os.access(given if os.path.exists(given) else folder, os.W_OK):
        raise click.BadParameter(f"{str(given)[:200]} cannot be written. Name another file.")
    return given


@click.command()
@click.argument("plan")
@store_option
@plugin_option
@click.option("--report", "report_path", type=click.Path(dir_okay=False, path_type=Path), callback=page,
              help="Write the HTML report here afterwards; its folder must exist.")
@machine_options
@click.option("--method", "extra_methods", multiple=True,
              help="Add a method, such as one of a plug-in, to every block it can run in; repeatable.")
@click.option("--fresh", is_flag=True, help="Run every case, even those already measured.")
@click.option("--carry-quality", is_flag=True,
              help="With --fresh: keep the figures of an earlier quality pass where a case still produces the same tokens.")
@click.option("--explain", is_flag=True, help="Only say for each case whether it would run, and why.")
@click.option("--share", callback=_share, metavar="I/N", help="Only generate share I of N of the quality images, for a later run to use.")
@click.option("--max-batch", is_flag=True, help="Find the largest batch that fits for the full cache and every method, and its throughput.")
@click.option("--dry-run", is_flag=True, help="Only estimate what the plan costs: device hours, disk, device memory, missing files.")
@click.option("--on", type=click.Choice(["a100", "h100", "h200"]), help="With --dry-run: estimate for this card instead of this machine.")
@click.option("--budget", callback=span, metavar="TIME",
              help="Finish within a time such as 6h or 90min: the most important cases first, the rest is not reached.")
@click.option("--deadline", "until", callback=moment, metavar="MOMENT", help="Finish by 06:00, or by an ISO 8601 moment.")
@click.option("--until-decided", is_flag=True,
              help="Double the samples until every method is shown to be as good as the full cache, or to be worse.")
@click.option("--max-minutes", type=Finite(0, MOST_SECONDS / 60), metavar="MINUTES",
              help="With --until-decided: begin no look that would end later.")
@json_option
def run(
    plan: str, store_url: str, plugin_files: tuple[str, ...], report_path: Path | None, machine: Machine,
    extra_methods: tuple[str, ...], fresh: bool, carry_quality: bool, explain: bool, share: tuple[int, int] | None, max_batch: bool,
    dry_run: bool, on: str | None, budget: float | None, until: float | None, until_decided: bool, max_minutes: float | None,
    as_json: bool,
) -> None:
    """Measure PLAN: the name of a shipped plan (see `cachemark list plans`) or a TOML file.

    Cases that the store already holds, measured by the same code on the same machine and software, are not run again. Ctrl-C keeps
    every completed case; the same command resumes from there. Methods of --plugin files join every block they can run in.
    """
    from ..core.errors import Infrastructure
    from ..workflows.deciding_seeds import until_decided as run_until_decided
    from ..workflows.pricing import price_list
    from ..workflows.running import explain as explain_cases
    from ..workflows.running import max_batch as find_max_batch
    from ..workflows.running import run as measure
    from ..workflows.running import share as measure_share
    from .progress import Follower

    refuse_together(_UNUSED)
    refuse_alone("--on", "--dry-run", "a plan is measured on this machine, on --device cpu or cuda.")
    refuse_alone("--carry-quality", "--fresh", "without --fresh quality is carried over anyway.")
    refuse_alone("--max-minutes", "--until-decided", "--budget TIME ends any run in time.")
    given: dict[str, Any] = {"store": store_url, "machine": machine, "plugins": plugin_files, "methods": extra_methods}
    if dry_run:
        _print_price(price_list(plan, on=on or "", **given), as_json)
        return
    if explain:
        _print_explanations(explain_cases(plan, fresh=fresh, **given), as_json)
        return
    with Follower() as follower:
        if share is not None:
            failed = measure_share(plan, share, watcher=follower, **given)
            sys.exit(Infrastructure.exit_code if failed else 0)
        if until_decided:
            found = run_until_decided(plan, fresh=fresh, minutes=max_minutes, watcher=follower, on_interim=_print_interim,
                                            **given).run
        elif max_batch:
            found = find_max_batch(plan, fresh=fresh, watcher=follower, **given)
        else:
            ends = [seconds for seconds in (budget, until) if seconds is not None]
            found = measure(plan, fresh=fresh, carry_quality=carry_quality or not fresh, seconds=min(ends, default=None),
                                  watcher=follower, **given)
    for note in found.notes:
        click.echo(note, err=True)
    report = found.report(report_path).path if report_path else None
    (_print_largest if max_batch else _conclude)(found, report, as_json)


def _print_interim(interim: Interim) -> None:
    """A line on standard error for each look at the methods."""
    words = [f"{len(titles)} {word}" for titles, word in (
        (interim.qualified, "shown to be as good"), (interim.disqualified, "shown to be worse"), (interim.open, "open")) if titles]
    left = f": {', '.join(interim.open)}" if interim.open else ""
    click.echo(printed(f"{interim.samples} samples: {', '.join(words)}{left}."), err=True)


def _print_largest(found: Run, report: Path | None, as_json: bool) -> None:
    """A line for each case: its largest batch, and throughput at equal batch and at equal memory."""
    assert found.measured is not None
    rows = [{"model": o.case.model, "case": o.case.label, "status": str(o.status),
             **{name: o.median(name) for name in ("max_batch", "throughput", "throughput_max")}} for o in found.outcomes]
    if as_json:
        echo_json({"run": found.id, "ran": len(found.measured.ran), "skipped": found.measured.carried, "report": report, "cases": rows})
    else:
        _print_sizes(found, rows)
        _print_report(report)
    _refuse_empty(found)


def _print_sizes(found: Run, rows: list[dict[str, Any]]) -> None:
    click.echo(f"{'':44}{'largest batch':>14}{'image/s, equal batch':>22}{'image/s, equal memory':>23}")
    for outcome, row in zip(found.outcomes, rows, strict=True):
        cells = [f"{row[name]:.4g}" if row[name] is not None else "—" for name in ("max_batch", "throughput", "throughput_max")]
        ended = "" if outcome.ok else f"  {outcome.status}"
        click.echo(f"{outcome.case.title:<44}{cells[0]:>14}{cells[1]:>22}{cells[2]:>23}{ended}")


def _refuse_empty(found: Run) -> None:
    """A run in which no full cache and no method has figures, whatever its reference rows have, has measured nothing."""
    from ..core.errors import NothingMeasured

    asked = [o for o in found.outcomes if o.case.role in ("baseline", "arm")]
    if not any(o.ok for o in asked or found.outcomes):
        raise NothingMeasured("No case of the plan was measured: neither a full cache nor a method has figures.",
                              remedy="See the reasons above, or `cachemark show`.")


def _print_report(path: Path | None) -> None:
    if path is not None:
        click.echo(f"Report: {path}")


def _conclude(found: Run, report: Path | None, as_json: bool) -> None:
    """Print the result; a run that measured nothing that was asked for, or did not reach it, is a failure."""
    from ..core.errors import NothingMeasured

    assert found.measured is not None
    ran, carried = found.measured.ran, found.measured.carried
    failed, late = [o for o in ran if not o.ok], [o for o in ran if o.status == "not_reached"]
    if as_json:
        echo_json({"run": found.id, "ran": len(ran), "skipped": carried, "report": report,
                   "not_ok": [{"case": o.case.label, "status": str(o.status)} for o in failed],
                   "answers": [_answer_data(model, answer) for model, answer in found.answers.items()]})
    else:
        click.echo(f"Run {found.id}: {len(ran) - len(failed)} measured, {len(failed)} failed, {carried} skipped.")
        _print_report(report)
    _refuse_empty(found)
    if not as_json:
        _print_answers(found.answers)
    if late:
        raise NothingMeasured(f"Not reached, so that nothing is known of them: {', '.join(o.case.title for o in late)}.",
                              remedy="The same command goes on with them.")


def _answer_data(model: str, answer: Answer) -> dict[str, Any]:
    """An answer as data; ``method`` and ``budget`` are those of the full cache where no other is recommended."""
    row = answer.row
    return {"model": model, "answer": answer.text, "method": row.method if row else "full", "budget": str(row.case.budget) if row else "1"}


def _print_answers(answers: Mapping[str, Answer]) -> None:
    """Which cache to use: a line for each model, and one that says what the lines mean."""
    from .progress import plain

    shown = list(answers.items())[:ANSWERS]
    for model, answer in shown:
        click.echo(f"{plain(model)}: {plain(answer.text)}")
    if shown:
        more = f"{len(answers) - len(shown)} more models stand in the report. " if len(answers) > len(shown) else ""
        told = f"{more}Speeds (×) are ratios to this run's full cache, with their intervals; `cachemark report` shows the images."
        click.echo(runnable(told))


def _print_explanations(rows: list[Explanation], as_json: bool) -> None:
    if as_json:
        echo_json([{"case": row.case.to_json(), "label": row.case.label, "action": _action(row), "reason": row.reason} for row in rows])
        return
    width = max(len(row.case.title) for row in rows)
    for row in rows:
        click.echo(f"{row.case.title:<{width}}  {_action(row):<4}  {row.reason}")


def _action(row: Explanation) -> str:
    return "skip" if row.stored else "run"


def _print_price(cost: PriceList, as_json: bool) -> None:
    if as_json:
        echo_json({"plan": cost.plan, "on": cost.on, "cases": cost.cases, "to_run": cost.to_run, "hours": cost.hours,
                   "models": cost.models, "missing": cost.missing, "disk_free": cost.disk_free,
                   "idle": [{"case": title, "reason": reason} for title, reason in cost.idle]})
        return
    click.echo(f"{cost.plan} on {cost.on}: {count(cost.cases, 'case')}, {cost.cases - cost.to_run} measured already, {cost.to_run} to run.")
    click.echo(f"{'':20}{'cases':>6}{'device hours':>14}{'disk':>10}{'memory':>10}  price from")
    for row in cost.models:
        source = f"stored durations of {count(row.from_stored, 'case')}, roofline × 1.5 of {row.cases - row.from_stored}"
        click.echo(f"{row.model:20}{row.cases:6}{row.hours:14.3f}{row.disk / 2**20:7.1f} MiB{row.memory / 2**30:6.1f} GiB  {source}")
    click.echo(f"In all {cost.hours:.2f} device hours and {sum(row.disk for row in cost.models) / 2**20:.1f} MiB of "
               f"{cost.disk_free / 2**30:.0f} GiB free.")
    for path in cost.missing:
        click.echo(f"Missing: {path}  (priced without it)")
    for title, reason in cost.idle:
        click.echo(printed(f"{title} does nothing. {reason}"))
