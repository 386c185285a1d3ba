"""``cachemark report``: write the HTML page of a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import existing, run_option, store_option

if TYPE_CHECKING:
    from ..report.view import ReportView
    from ..result import Outcome
    from ..store.db import Store
    from ..store.exchange import Exchange
    from ..store.rows import Run


@click.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), default=Path("report.html"))
@store_option
@run_option
@click.option("--baseline", "baseline_path", type=click.Path(path_type=Path),
              help="Baseline file to compare with.  [default: the accepted one, if any]")
def report(path: Path, store_url: str, run_id: int | None, baseline_path: Path | None) -> None:
    """Write the report of a run to PATH, one HTML file that needs nothing else."""
    with existing(store_url) as store:
        click.echo(f"Report: {write_report(store, run_id, path, baseline_path)}")


def write_report(store: Store, run_id: int | None, path: Path, baseline_path: Path | None = None) -> Path:
    """Render a run (None: the newest), compared with a baseline where there is one, with earlier runs of its plan as its history."""
    from ..errors import Infrastructure
    from ..report import render

    try:
        with _uncollected():
            return render.write(build(store, run_id, baseline_path), path)
    except OSError as error:
        raise Infrastructure(f"{path} cannot be written: {error.strerror}.", remedy="Name another file: cachemark report PATH") from error


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


def build(store: Store, run_id: int | None, baseline_path: Path | None = None) -> ReportView:
    """What the page of a run shows."""
    from ..regress import anchors, gate
    from ..report import view
    from ..report.history import MOST, Night

    run, reached = store.run(run_id), anchors.load()
    outcomes, baseline = store.outcomes(run.id), _baseline(run, baseline_path)
    comparison = gate.compare(baseline, outcomes, run.environment, plan=run.plan) if baseline else None
    alike = [other for other in store.runs() if other.id < run.id and other.plan == run.plan
             and other.environment.machine_class == run.environment.machine_class][: MOST - 1]
    nights = [*(Night(other, _measured(store, other.id, store.outcomes(other.id))) for other in reversed(alike)),
              Night(run, _measured(store, run.id, outcomes))]
    return view.build(run, outcomes, comparison, store.artifact,
                      lambda case: anchors.unanchored(case.model, case.weights, reached),
                      baseline=baseline, nights=nights, trials=store.trials(run.id))


def _measured(store: Store, run_id: int, outcomes: list[Outcome]) -> list[Outcome]:
    """The outcomes of a run without those that it carried over from an earlier one: a figure belongs to the day on which it was measured."""
    carried = store.carried(run_id)
    return [outcome for outcome in outcomes if outcome.case.key not in carried]


def _baseline(run: Run, path: Path | None) -> Exchange | None:
    """The given baseline, or the accepted one of this plan and machine class, if that exists."""
    from ..regress import baselines

    if path is None:
        path = baselines.path_of(baselines.ROOT, run.environment.machine_class, run.plan)
        if not path.is_file():
            return None
    return baselines.load(path)
