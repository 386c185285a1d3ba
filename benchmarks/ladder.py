"""The baseline ladder: paper-faithful, then attention on live keys, then recorded graphs; and every method over each rung.

Runs a plan that has the full cache in several engines (``ladder`` on a CPU, ``ladder-gpu`` on a GPU) and prints one table in Markdown. On
a CUDA device each block that runs eagerly is measured in the graph engine too, where this version has one; on a CPU that
rung is left out and the table says so.

    python benchmarks/ladder.py [PLAN] [--device cuda] [--threads 2] [--model NAME]... [--out FILE]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import get_args

from cachemark.export.ladder import ladders, markdown
from cachemark.plans import schema as plans
from cachemark.plans.schema import Cells, Plan
from cachemark.store.db import Store
from cachemark.workflows.measuring import measure


def with_graphs(plan: Plan, device: str) -> Plan:
    """The plan with every eager block once more in the graph engine, where that can be."""
    if device == "cpu" or "graph" not in get_args(Cells.model_fields["engine"].annotation):
        return plan
    graphs = [cells.model_copy(update={"engine": "graph"}) for cells in plan.cells if cells.engine == "eager"]
    return plan.model_copy(update={"cells": [*plan.cells, *graphs]})


def only(plan: Plan, models: list[str]) -> Plan:
    """The blocks of these models, all of them where none is named."""
    return plan.model_copy(update={"cells": [cells for cells in plan.cells if not models or cells.model in models]})


def climb(plan: Plan, device: str, threads: int) -> str:
    """Run the plan into a store of its own and return the table."""
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/ladder.sqlite") as store:
        summary = measure(plan, store, device=device, threads=threads)
        run = store.run(summary.run_id)
        return markdown(ladders(summary.ran), run.environment, str(run.code.get("commit") or ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("plan", nargs="?", default="ladder")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    table = climb(with_graphs(only(plans.load(given.plan), given.model), given.device), given.device, given.threads)
    if given.out:
        given.out.write_text(table, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
