"""``cachemark run``, ``max-batch``, ``share``, ``price`` and ``explain``: measure a plan or its cost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.units import LARGEST, LARGEST_RATE, RATE
from ..core.wording import count
from .cards import CARDS, card_options
from .endings import runnable
from .options import (
    FOLDER,
    MOST_SECONDS,
    echo_json,
    fetch_option,
    fresh_option,
    json_option,
    money,
    plan_options,
    price_option,
    report_option,
    say,
)

if TYPE_CHECKING:
    from ..workflows.results import Run
    from ..workflows.session import Machine

MOST_ANSWERS = 4  # lines of answers
MOST_SHARES = 10_000
SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(min|[smhd])\s*", re.ASCII)


# -- run --------------------------------------------------------------------------------------------------------------
def span(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Parse ``6h``, ``90min`` or ``1h30m`` as seconds."""
    if text is None:
        return None
    seconds = sum(float(number) * SECONDS[unit] for number, unit in SPAN.findall(text))
    if SPAN.sub("", text) or not seconds <= MOST_SECONDS:
        raise click.BadParameter(f"{text!r} is not a time of at most a year; write 6h, 90min or 1h30m.")
    return seconds


def _mention_gpu(plan: str, machine: Machine) -> None:
    """Print that a shipped plan is meant for a GPU, if it is about to run on a CPU."""
    from ..core.shipped_plans import for_gpu

    if machine.device == "cpu" and for_gpu(plan):
        say(f"{plan} is a plan for a GPU; a CPU may take days or run out of memory. Add --device cuda; for its cost: "
            f"cachemark price {plan} --card h100", err=True)


@click.command()
@plan_options
@report_option
@fresh_option
@click.option("--reuse-quality", is_flag=True, help="With --fresh: reuse quality values of cases whose tokens did not change.")
@click.option("--time", "seconds", callback=span, metavar="TIME",
              help="Finish within a time, e.g. 6h or 90min; important cases run first.")
@price_option
@click.option("--samples", type=FOLDER, help="Write the images of each quality pass to this folder, as sample batches (npz).")
@fetch_option
@json_option
def run(
    report_path: Path | None, fresh: bool, reuse_quality: bool, seconds: float | None, price: float, as_json: bool, **where: Any,
) -> None:
    """Measure a plan and store every result.

    PLAN is the name of a shipped plan (see `cachemark list plans`) or a TOML file. Cases that the store already holds, measured by the
    same code on the same machine and software, are not run again. Ctrl-C keeps every completed case; the same command resumes from there.
    Methods of --plugin files join every block they can run in.
    """
    from ..workflows.run import run as measure

    _mention_gpu(where["plan"], where["machine"])
    if reuse_quality and not fresh:
        raise click.UsageError("--reuse-quality needs --fresh. Add it, or leave both out.")
    measured = measure(reuse_quality=reuse_quality or not fresh, seconds=seconds, price=price, fresh=fresh, **where)
    conclude(measured, write_report(measured, report_path), as_json)


def write_report(run: Run, path: Path | None) -> Path | None:
    """Print the notes of a run, write its report to ``path`` if given, and return the report's path."""
    for note in run.notes:
        say(note, err=True)
    return run.report(path).path if path else None


def _refuse_empty(run: Run) -> None:
    """Raise NothingMeasured if no full cache and no method has results."""
    from ..core.errors import NothingMeasured

    compared = [o for o in run.outcomes if o.case.role in ("baseline", "candidate")]
    if not any(o.ok for o in compared or run.outcomes):
        raise NothingMeasured("No case of the plan produced results.", remedy="See the errors above, or run `cachemark show`.")


def conclude(run: Run, report: Path | None, as_json: bool) -> None:
    """Print the result; fail if nothing was measured, or if cases were not reached."""
    from ..core.errors import NothingMeasured

    assert run.measured is not None
    ran, reused = run.measured.ran, run.measured.reused
    failed, late = [o for o in ran if not o.ok], [o for o in ran if o.status == "not_reached"]
    if as_json:
        rows = {model: answer.row for model, answer in run.answers.items()}  # None: the full cache
        echo_json({"run": run.id, "ran": len(ran), "skipped": reused, "report": report,
                   "not_ok": [{"case": o.case.label, "status": str(o.status)} for o in failed],
                   "answers": [{"model": model, "answer": run.answers[model].text, "method": row.method if row else "full",
                                "budget": str(row.case.budget) if row else "1"} for model, row in rows.items()]})
    else:
        say(f"Run {run.id}: {len(ran) - len(failed)} measured, {len(failed)} failed, {reused} skipped.")
        if report is not None:
            say(f"Report: {report}")
    _refuse_empty(run)
    if not as_json:
        _print_answers(run)
    if late:
        raise NothingMeasured(f"Not run before the deadline: {', '.join(o.case.title for o in late)}.",
                              remedy="Rerun the same command to continue.")


def _print_answers(run: Run) -> None:
    """Print the recommended cache of each model, and where each plug-in method is placed."""
    chapters = run.view.chapters
    answers = {chapter.heading: chapter.answer for chapter in chapters}
    for model, answer in list(answers.items())[:MOST_ANSWERS]:
        say(f"{model}: {answer.text}")
    for chapter in chapters:
        for name, line in chapter.plugins:
            say(f"{chapter.heading}, {name}: {line}")
    if answers:
        more = f"{len(answers) - MOST_ANSWERS} more models are in the report. " if len(answers) > MOST_ANSWERS else ""
        say(runnable(f"{more}Speeds (×) are ratios to this run's full cache, with their intervals; `cachemark report` shows the images."))


# -- max-batch --------------------------------------------------------------------------------------------------------
@click.command("max-batch")
@plan_options
@report_option
@fresh_option
@json_option
def max_batch(report_path: Path | None, as_json: bool, **where: Any) -> None:
    """Find the largest batch that fits, for every method of a plan.

    Prints throughput at the plan's batch and at the largest one. On a CPU it needs --memory-cap.
    """
    from ..workflows.run import max_batch as find_largest

    run = find_largest(**where)
    report = write_report(run, report_path)
    assert run.measured is not None
    names = (LARGEST, RATE, LARGEST_RATE)
    if as_json:
        cases = [{"model": o.case.model, "case": o.case.label, "status": str(o.status), **{name: o.median(name) for name in names}}
                 for o in run.outcomes]
        echo_json({"run": run.id, "ran": len(run.measured.ran), "skipped": run.measured.reused, "report": report, "cases": cases})
    else:
        say(f"{'':44}{'largest batch':>14}{'image/s, equal batch':>22}{'image/s, equal memory':>23}")
        for outcome in run.outcomes:
            medians = [outcome.median(name) for name in names]
            largest, rate, largest_rate = (f"{median:.4g}" if median is not None else "—" for median in medians)
            say(f"{outcome.case.title:<44}{largest:>14}{rate:>22}{largest_rate:>23}{'' if outcome.ok else f'  {outcome.status}'}")
        if report is not None:
            say(f"Report: {report}")
    _refuse_empty(run)


# -- share ------------------------------------------------------------------------------------------------------------
def _part(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    """``2/8`` as (1, 8)."""
    index, _, total = value.partition("/")
    if not (re.fullmatch(r"\d{1,5}/\d{1,5}", value, re.ASCII) and 1 <= int(index) <= int(total) <= MOST_SHARES):
        raise click.BadParameter(f"{value!r} is not a share; write 2/8 for the second of eight (at most {MOST_SHARES}).")
    return int(index) - 1, int(total)


@click.command()
@plan_options
@click.argument("part", callback=_part, metavar="I/N")
def share(**where: Any) -> None:
    """Generate one share of a plan's quality images.

    Several processes can each generate share I of N into one store; a later `cachemark run` of the plan uses all of them. Machines need a
    store on a PostgreSQL server, or on a shared disk whose file locks work; see docs/how-to/shared-disks.md.
    """
    from ..core.errors import Infrastructure
    from ..workflows.run import share as generate_share

    raise SystemExit(Infrastructure.exit_code if generate_share(**where) else 0)


# -- price ------------------------------------------------------------------------------------------------------------
@click.command()
@plan_options
@card_options(f"Estimate for this card instead of this machine: {CARDS}, or custom.")
@price_option
@json_option
def price(as_json: bool, card: str | None, price: float, **where: Any) -> None:
    """Estimate the cost of a plan: device hours, money, disk and memory.

    Nothing is measured. Stored durations are used where the store has them, elsewhere the roofline times the efficiency that was measured
    of the family, engine and batch. Missing files and methods that save nothing are listed.
    """
    from ..core.formatting import size
    from ..workflows.price import price_list

    costs = price_list(on=card or "", **where)
    if as_json:
        idle = [{"case": title, "reason": reason} for title, reason in costs.idle]
        echo_json({**vars(costs), "hours": costs.hours, "idle": idle})
        return
    stored = costs.cases - costs.to_run
    say(f"{costs.plan} on {costs.on}: {count(costs.cases, 'case')}, {stored} measured already, {costs.to_run} to run.")
    say(f"{'':20}{'cases':>6}{'hours at the bound':>20}{'likely':>20}{'disk':>12}{'memory':>10}  estimated from")
    for row in costs.models:
        sources = [f"stored durations of {count(row.from_stored, 'case')}"] * bool(row.from_stored) + [row.basis] * bool(row.basis)
        say(f"{row.model:20}{row.cases:6}{row.bound:20,.3f}  {f'{row.least:,.3f}–{row.most:,.3f}':>18}{row.disk / 2**20:8.1f} MiB"
            f"{size(row.memory):>10}  {'; '.join(sources)}")
    bound, least, most = (sum(getattr(row, name) for row in costs.models) for name in ("bound", "least", "most"))
    say(f"In all {bound:,.2f} device hours at the bound, {least:,.2f}–{most:,.2f} likely{money(least, most, price)}, and "
        f"{sum(row.disk for row in costs.models) / 2**20:.1f} MiB of {costs.disk_free / 2**30:.0f} GiB free.")
    for row in costs.models:
        if 0 < costs.memory < row.memory:
            say(f"{row.model} needs {size(row.memory)}, and there are {size(costs.memory)}. Lower batch in its block of the plan.")
    if costs.too_few_seeds:
        say(costs.too_few_seeds)
    for path in costs.missing:
        say(f"Missing: {path}  (estimated without it)" + (f"  Get it: {costs.fetch[path]}" if path in costs.fetch else ""))
    for title, reason in costs.idle:
        say(f"{title} has no effect. {reason}")


# -- explain ----------------------------------------------------------------------------------------------------------
@click.command()
@plan_options
@fresh_option
@json_option
def explain(as_json: bool, **where: Any) -> None:
    """Show which cases of a plan would run, and why.

    Nothing is run and the store is not changed. With --device cuda on a computer without a GPU, every case counts as one to run.
    """
    from ..workflows.decidable import too_few_seeds
    from ..workflows.pending import explain as explain_cases

    explained = explain_cases(**where)
    rows = [(planned.case, "skip" if planned.stored else "run", reason) for planned, reason in explained]
    if as_json:
        echo_json([{"case": case.to_json(), "label": case.label, "action": action, "reason": reason} for case, action, reason in rows])
        return
    if note := too_few_seeds([planned for planned, _ in explained]):
        say(note)
    width = max(len(case.title) for case, _, _ in rows)
    for case, action, reason in rows:
        say(f"{case.title:<{width}}  {action:<4}  {reason}")
