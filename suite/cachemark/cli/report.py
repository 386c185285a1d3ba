"""``cachemark report``: write the HTML page of a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import existing, run_option, store_option

if TYPE_CHECKING:
    from ..core.result import Outcome
    from ..report.charts.history import HistoryNight
    from ..report.view.view import ReportView
    from ..stats.changepoints import ChangePoint
    from ..store.db import Store
    from ..store.rows import RunRecord


@click.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), default=Path("report.html"))
@store_option
@run_option
@click.option("--baseline", "baseline_path", type=click.Path(path_type=Path),
              help="Baseline file to compare with.  [default: the accepted one, if any]")
@click.option("--site", type=click.Path(file_okay=False, path_type=Path),
              help="Write the reports of all runs to this folder instead, with a page that lists them.")
@click.option("--days", type=click.IntRange(min=1), default=90, show_default=True,
              help="With --site: leave out runs that are older, and remove their pages.")
@click.option("--anew", is_flag=True, help="With --site: make every page again, also those that are there.")
@click.option("--public", is_flag=True, help="Leave out host, user, paths, device numbers and texts of errors.")
def report(
    path: Path, store_url: str, run_id: int | None, baseline_path: Path | None, site: Path | None, days: int, anew: bool, public: bool,
) -> None:
    """Write the report of a run to PATH, one HTML file that needs nothing else.

    --site DIR makes a static site of all runs, newest first. A nightly job adds its run; pages that are there stay as they are.
    """
    with existing(store_url) as store:
        if site is None:
            click.echo(f"Report: {write_report(store, run_id, path, baseline_path, public=public)}")
            return
        if run_id is not None:
            raise click.UsageError("--site is of all runs; leave out --run.")
        made, removed, index = write_site(store, site, baseline_path, days, anew=anew, public=public)
    click.echo(f"Site: {index}; {made} new pages, {removed} removed")


def write_site(
    store: Store, folder: Path, baseline_path: Path | None, days: int, *, anew: bool = False, public: bool = False,
) -> tuple[int, int, Path]:
    """Make or bring up to date the site of a store: how many pages were written, how many removed, and the page that lists them."""
    from datetime import UTC, datetime

    from ..core.errors import Infrastructure
    from ..report.page import site

    now = datetime.now(UTC)
    young = [run for run in store.runs() if not site.too_old(run.started, now, days)]
    lines, made = [], 0
    try:
        for run in young:
            view, nights = _listed(store, run, baseline_path, public)
            if anew or run.state == "running" or not site.page_of(folder, run.id).is_file():
                site.put(folder, run.id, view)
                made += 1
            lines.append(site.listed(run.id, view, nights))
        return made, site.prune(folder, [run.id for run in young]), site.publish(folder, lines)
    except OSError as error:
        raise Infrastructure(f"{folder} cannot be written: {error.strerror}.", remedy="Name another folder.") from error


def write_report(store: Store, run_id: int | None, path: Path, baseline_path: Path | None = None, *, public: bool = False) -> Path:
    """Render a run (None: the newest), compared with a baseline where there is one, with earlier runs of its plan as its history;
    ``public`` as far as anybody may see it."""
    from ..core.errors import Infrastructure
    from ..report.page import render

    run = store.run(run_id)
    try:
        with _uncollected():
            return render.write(_viewed(store, run, _baseline(run, baseline_path), public)[0], path)
    except OSError as error:
        raise Infrastructure(f"{path} cannot be written: {error.strerror}.", remedy="Name another file: cachemark report PATH") from error


def _listed(store: Store, run: RunRecord, baseline_path: Path | None, public: bool) -> tuple[ReportView, list[HistoryNight]]:
    """What the page of a run in a site shows: without a comparison where the baseline is of another plan or shares no case with it."""
    from ..core.errors import NothingMeasured

    try:
        return _viewed(store, run, _baseline(run, baseline_path), public)
    except NothingMeasured:
        return _viewed(store, run, None, public)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the cyclic collector: a page is made of millions of small objects, none of them a cycle, and walking them again and again
    takes a fifth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _viewed(store: Store, run: RunRecord, path: Path | None, public: bool) -> tuple[ReportView, list[HistoryNight]]:
    """What the page of a run shows beside the baseline at ``path``, and the runs of its history. A public one names no process and no
    host."""
    from ..gate import anchors, baselines
    from ..gate import nights as ledger
    from ..report.charts.history import MOST, HistoryNight
    from ..report.view import view
    from ..report.view.public import public_outcomes, public_run, scrubbed
    from ..workflows.judged import Shown, judge

    reached, outcomes = anchors.load(), store.outcomes(run.id)
    baseline = baselines.load(path) if path else None
    comparison = Shown(judge(store, run, path, expired=True)) if path else None
    alike = [other for other in store.runs() if other.id < run.id and other.plan == run.plan
             and other.environment.machine_class == run.environment.machine_class][: MOST - 1]
    nights = [*(HistoryNight(other, _measured(store, other.id, store.outcomes(other.id))) for other in reversed(alike)),
              HistoryNight(run, _measured(store, run.id, outcomes))]
    shown, held = (public_run(run), public_outcomes(outcomes)) if public else (run, outcomes)
    if public and baseline:
        there = replace(baseline.environment, facts=scrubbed(baseline.environment.facts))
        baseline = replace(baseline, environment=there, meta=scrubbed(baseline.meta))
    page = view.build(shown, held, comparison, store.artifact, lambda case: anchors.unanchored(case.model, case.weights, reached),
                      baseline=baseline, nights=nights, trials=None if public else store.trials(run.id),
                      standing=ledger.standing(ledger.nights(store, run.plan, run.environment.machine_class)), trend=changes_over_nights)
    return page, nights


def changes_over_nights(costs: Sequence[float], environments: Sequence[str], device_class: str) -> list[ChangePoint]:
    """What changed in log costs, one per run, by at least what a device of this class is taken to see."""
    from ..gate import nights as ledger
    from ..stats import changepoints as history

    least = ledger.FLOOR.get(device_class, max(ledger.FLOOR.values()))
    return [change for epoch in history.changes(costs, environments, least) for change in epoch.changes]


def _measured(store: Store, run_id: int, outcomes: list[Outcome]) -> list[Outcome]:
    """The outcomes of a run without what it carried over from an earlier one: a figure belongs to the day on which it was measured."""
    carried = store.carried(run_id)
    if not carried:
        return outcomes
    return [outcome for outcome in outcomes if outcome.case.key not in carried]


def _baseline(run: RunRecord, path: Path | None) -> Path | None:
    """The given baseline, or the accepted one of this plan and machine class, if that exists."""
    from ..gate import baselines

    accepted = path or baselines.path_of(baselines.ROOT, run.environment.machine_class, run.plan)
    return accepted if path or accepted.is_file() else None
