"""``cachemark report``: write the HTML page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import existing, run_option, store_option

if TYPE_CHECKING:
    from ..store.db import Store
    from .judged import Shown


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
    """Render a run (None: the newest), compared with a baseline where there is one."""
    from ..errors import Infrastructure
    from ..regress import anchors
    from ..report import render, view

    run, reached = store.run(run_id), anchors.load()
    page = view.build(run, store.outcomes(run.id), _comparison(store, run.id, baseline_path), store.artifact,
                      lambda case: anchors.unanchored(case.model, case.weights, reached))
    try:
        return render.write(page, path)
    except OSError as error:
        raise Infrastructure(f"{path} cannot be written: {error.strerror}.", remedy="Name another file: cachemark report PATH") from error


def _comparison(store: Store, run_id: int, path: Path | None) -> Shown | None:
    """What is said of the run by the given baseline, or by the accepted one of this plan and machine class, if that exists."""
    from ..regress import baselines
    from .judged import Shown, judge

    run = store.run(run_id)
    if path is None and not baselines.path_of(baselines.ROOT, run.environment.machine_class, run.plan).is_file():
        return None
    return Shown(judge(store, run, path, expired=True))
