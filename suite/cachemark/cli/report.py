"""``cachemark report``: write the HTML page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import existing, run_option, store_option

if TYPE_CHECKING:
    from ..regress.gate import Comparison
    from ..store.db import Store


@click.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), default=Path("report.html"))
@store_option
@run_option
@click.option("--baseline", "baseline_path", type=click.Path(path_type=Path),
              help="Baseline file to compare with.  [default: the accepted one, if any]")
@click.option("--public", is_flag=True, help="Leave out host, user, paths, device numbers and texts of errors.")
def report(path: Path, store_url: str, run_id: int | None, baseline_path: Path | None, public: bool) -> None:
    """Write the report of a run to PATH, one HTML file that needs nothing else."""
    with existing(store_url) as store:
        click.echo(f"Report: {write_report(store, run_id, path, baseline_path, public=public)}")


def write_report(store: Store, run_id: int | None, path: Path, baseline_path: Path | None = None, *, public: bool = False) -> Path:
    """Render a run (None: the newest), compared with a baseline where there is one; ``public`` as far as anybody may see it."""
    from ..errors import Infrastructure
    from ..regress import anchors
    from ..report import render, view
    from ..report.public import public_outcomes, public_run

    run, reached = store.run(run_id), anchors.load()
    shown, outcomes = (public_run(run), public_outcomes(store.outcomes(run.id))) if public else (run, store.outcomes(run.id))
    page = view.build(shown, outcomes, _comparison(store, run.id, baseline_path), store.artifact,
                      lambda case: anchors.unanchored(case.model, case.weights, reached))
    try:
        return render.write(page, path)
    except OSError as error:
        raise Infrastructure(f"{path} cannot be written: {error.strerror}.", remedy="Name another file: cachemark report PATH") from error


def _comparison(store: Store, run_id: int, path: Path | None) -> Comparison | None:
    """The comparison with the given baseline, or with the accepted one of this plan and machine class, if that exists."""
    from ..regress import baselines, gate

    run = store.run(run_id)
    if path is None:
        path = baselines.path_of(baselines.ROOT, run.environment.machine_class, run.plan)
        if not path.is_file():
            return None
    return gate.compare(baselines.load(path), store.outcomes(run_id), run.environment, plan=run.plan)
