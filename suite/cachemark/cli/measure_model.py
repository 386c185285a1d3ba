"""``cachemark measure``: methods and budgets on one model, without a plan file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..core.shipped_plans import run_command
from .measure import conclude, write_report
from .options import (
    FILE,
    MOST_MEASURED,
    Integer,
    fetch_option,
    json_option,
    machine_options,
    report_option,
    say,
    store_option,
    weights_options,
)


@click.command()
@click.argument("model")
@click.option("--method", "methods", multiple=True, required=True, metavar="NAME|FILE.py",
              help="Cache method, or a Python file that registers some; repeatable.")
@click.option("--budget", "budgets", multiple=True, default=["1/2"], show_default=True, metavar="FRACTION",
              help="Fraction of the full cache that is kept; repeatable.")
@click.option("--seeds", type=Integer(1, MOST_MEASURED), default=128, show_default=True,
              help="Images compared with the full cache's.")
@click.option("--batch", type=Integer(1, MOST_MEASURED), default=16, show_default=True, help="Images at a time.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True,
              help="Number format of the transformer.")
@click.option("--engine", type=click.Choice(["auto", "eager", "graph"]), default="eager", show_default=True,
              help="How forward passes run; graph captures them on a GPU.")
@weights_options
@fetch_option
@store_option
@machine_options
@report_option
@click.option("--save-plan", type=FILE, help="Write the plan to this TOML file (- prints it), and measure nothing.")
@json_option
def measure(report_path: Path | None, save_plan: Path | None, as_json: bool, **request: Any) -> None:
    """Measure methods on one model, without a plan file.

    MODEL is a name of `cachemark list models`. Each method runs at each budget and is compared with the full cache at equal seeds. The
    same command measures nothing again. A plan (--save-plan) has more settings: several models, quality, decoders, quantization.
    """
    from ..workflows.measure import measure_files, saved_plan

    if save_plan is not None:
        text = saved_plan(None if str(save_plan) == "-" else save_plan, **request)
        again = run_command(str(save_plan), request["machine"].device)
        say(text if str(save_plan) == "-" else f"Plan: {save_plan}. Run it with: {again}")
        return
    run = measure_files(**request)
    conclude(run, write_report(run, report_path), as_json)
