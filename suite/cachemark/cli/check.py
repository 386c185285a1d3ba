"""``cachemark check``: the gate."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import echo_json, existing, json_option, run_option, store_option

if TYPE_CHECKING:
    from ..regress.gate import Comparison


@click.command()
@store_option
@run_option
@click.option("--baseline", "baseline_path", type=click.Path(path_type=Path),
              help="Baseline file.  [default: the accepted one of this plan and machine class]")
@click.option("--threshold", type=click.FloatRange(min=0, min_open=True), default=0.15, show_default=True,
              help="Share by which a time, as a ratio to the same run's full cache, may change.")
@click.option("--min-coverage", type=click.FloatRange(0, 1), default=0.95, show_default=True,
              help="Share of the baseline's cases that must be judged.")
@json_option
def check(store_url: str, run_id: int | None, baseline_path: Path | None, threshold: float, min_coverage: float, as_json: bool) -> None:
    """Judge a run against a baseline.

    Exit codes: 0 pass, 1 regressed, 2 usage, 4 nothing or too little measured. Bytes, tokens and fidelity are compared
    exactly; times as ratios to the same run's full cache against a fixed threshold, which has no known false-alarm rate.
    """
    from ..regress import baselines, gate

    with existing(store_url) as store:
        run = store.run(run_id)
        path = baseline_path or baselines.path_of(baselines.ROOT, run.environment.machine_class, run.plan)
        held = baselines.load(path)
        found = gate.compare(held, store.outcomes(run.id), run.environment, threshold=threshold, min_coverage=min_coverage, plan=run.plan)
    if as_json:
        echo_json({"exit_code": found.exit_code, "coverage": found.coverage, "rows": [asdict(row) for row in found.rows]})
    else:
        _print(found, path)
    sys.exit(found.exit_code)


def _print(found: Comparison, path: Path) -> None:
    for line in found.summary():
        click.echo(line)
    for row in (*found.of("regressed"), *found.of("missing")):
        click.echo(f"  {row.verdict}: {row.label}, {row.metric}: {row.then} → {row.now}. {row.reason}".rstrip())
    click.echo(f"Baseline: {path}")
