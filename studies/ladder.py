"""The baseline ladder: paper-faithful, attention on live keys, captured graphs; and methods relative to each.

Runs a plan with the full cache in several engines (``ladder`` on a CPU, ``ladder-gpu`` on a GPU) and prints one table in Markdown. On a
CUDA device each eager block is also measured in the graph engine; on a CPU this rung is left out, with a note. Papers print the speedup
over the lowest rung; the speedup over the highest rung is the method's own gain.

    python -m studies.ladder [PLAN] [--device cuda] [--threads 2] [--model NAME]... [--out FILE]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from cachemark.core.formatting import DASH, times
from cachemark.core.limits import roofline_speedup
from cachemark.core.result import Environment, Outcome
from cachemark.core.spec import FULL, OWN, digest
from cachemark.plans import schema as plans
from cachemark.plans.schema import Cells, Plan
from cachemark.workflows.run import run
from cachemark.workflows.session import Machine

RUNGS = {"reference": "paper-faithful", "eager": "flash on live keys", "graph": "graph"}  # by engine, the lowest first


@dataclass(frozen=True)
class LadderRow:
    """A full cache on a rung, or a method on the highest rung with a measurement.

    ``over``: its speedup over the full cache of each rung, None if not measured; ``allowed``: the roofline speedup over the full cache.
    """

    name: str
    engine: str
    seconds: float
    over: dict[str, float | None]
    allowed: float | None


@dataclass(frozen=True)
class Ladder:
    """All rows of one model at one batch, sampling and dtype; ``missing``: why a rung has no full cache."""

    model: str
    batch: int
    dtype: str
    steps: tuple[LadderRow, ...]
    missing: dict[str, str]


def ladders(outcomes: Iterable[Outcome]) -> tuple[Ladder, ...]:
    """Return a ladder for each model, batch, sampling, dtype and device class with native codec, in measured order."""
    cells: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.case.role in ("candidate", "baseline") and outcome.case.codec == "native":
            cells.setdefault(_cell(outcome), []).append(outcome)
    return tuple(_ladder(group) for group in cells.values())


def _cell(outcome: Outcome) -> str:
    """Return the digest of the settings that the rungs of a ladder share: all except the engine and a candidate's own."""
    data = outcome.case.to_json()
    return digest({name: value for name, value in data.items() if name not in (*OWN, "engine", "evaluation", "samples")})


def _ladder(outcomes: Sequence[Outcome]) -> Ladder:
    fulls = {o.case.engine: o for o in outcomes if o.case.role == "baseline"}
    timed = {engine: o for engine, o in fulls.items() if o.median("latency")}
    missing = {rung: _no_rung(engine, fulls.get(engine)) for engine, rung in RUNGS.items() if engine not in timed}
    steps = [_step(o, timed) for engine in RUNGS if (o := timed.get(engine))]
    best: dict[str, Outcome] = {}
    for engine in RUNGS:  # a later engine replaces an earlier one
        best |= {o.case.label: o for o in outcomes if o.case.engine == engine and o.case.method != FULL and o.median("latency")}
    case = outcomes[0].case
    return Ladder(case.model, case.batch, case.dtype, (*steps, *(_step(o, timed) for o in best.values())), missing)


def _no_rung(engine: str, full: Outcome | None) -> str:
    if full is not None:
        return f"{full.status}: {full.log.strip().splitlines()[-1] if full.log.strip() else 'no reason was given'}"
    return "not in this plan" if engine != "graph" else "needs a CUDA device and the graph engine"


def _step(outcome: Outcome, fulls: dict[str, Outcome]) -> LadderRow:
    seconds = outcome.median("latency") or 0.0
    over: dict[str, float | None] = dict.fromkeys(RUNGS.values())
    for engine, full in fulls.items():
        if not outcome.facts.quality_only:
            over[RUNGS[engine]] = (full.median("latency") or 0.0) / seconds
    return LadderRow(outcome.case.label, outcome.case.engine, seconds, over, _allowed(outcome, fulls))


def _allowed(outcome: Outcome, fulls: dict[str, Outcome]) -> float | None:
    """Return the roofline speedup over the full cache of the same engine; None for a full cache or if unknown."""
    full = fulls.get(outcome.case.engine)
    if full is None or outcome.case.method == FULL or full.facts.limit is None or outcome.facts.limit is None:
        return None
    return roofline_speedup(full.facts.limit, outcome.facts.limit)


def markdown(ladder_list: Sequence[Ladder], environment: Environment, commit: str = "") -> str:
    """Return one table, followed by missing rungs and the machine."""
    rungs = list(RUNGS.values())
    lines = ["| model, batch, dtype | method | engine | s a batch | " + " | ".join(f"over {rung}" for rung in rungs) + " | ideal |",
             "|---|---|---|---|" + "---|" * (len(rungs) + 1)]
    for ladder in ladder_list:
        name = f"{ladder.model}, {ladder.batch}, {ladder.dtype}"
        for step in ladder.steps:
            cells = [_times(step.over[rung]) for rung in rungs]
            lines.append(f"| {name} | {step.name} | {step.engine} | {step.seconds:.3g} | {' | '.join(cells)} | {_times(step.allowed)} |")
    reasons: dict[tuple[str, str], list[str]] = {}
    for ladder in ladder_list:
        for rung, why in ladder.missing.items():
            reasons.setdefault((rung, why), []).append(ladder.model)
    lines += ["", *(f"Rung *{rung}* of {', '.join(dict.fromkeys(models))}: {why}." for (rung, why), models in reasons.items())]
    return "\n".join([*lines, "", f"Measured on {environment.machine_class}" + (f", commit {commit[:10]}." if commit else "."), ""])


def _times(value: float | None) -> str:
    return DASH if value is None else times(value)


def with_graphs(plan: Plan, device: str) -> Plan:
    """Return the plan with every eager block repeated in the graph engine, if the device has one."""
    if device == "cpu" or "graph" not in get_args(Cells.model_fields["engine"].annotation):
        return plan
    graphs = [cells.model_copy(update={"engine": "graph"}) for cells in plan.cells if cells.engine == "eager"]
    return plan.model_copy(update={"cells": [*plan.cells, *graphs]})


def only(plan: Plan, models: list[str]) -> Plan:
    """Return the plan with the blocks of these models; without names, of all."""
    return plan.model_copy(update={"cells": [cells for cells in plan.cells if not models or cells.model in models]})


def climb(plan: Plan, device: str, threads: int) -> str:
    """Run the plan into a temporary store and return the table."""
    with tempfile.TemporaryDirectory() as folder:
        result = run(plan, f"{folder}/ladder.sqlite", machine=Machine(device, threads))
        return markdown(ladders(result.outcomes), result.record.environment, str(result.record.code.get("commit") or ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("plan", nargs="?", default="ladder")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    table = climb(with_graphs(only(plans.load(arguments.plan), arguments.model), arguments.device), arguments.device, arguments.threads)
    if arguments.out:
        arguments.out.write_text(table, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
