"""Measured times over lower bounds of the accepted baselines, which ``price``, ``roofline`` and ``advise`` use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cachemark.core.files import PACKAGE
from cachemark.core.units import TIME
from cachemark.gate import baselines
from cachemark.models.protocol import Request
from cachemark.plans.planned import Planned
from cachemark.plans.price import launches, paper

ACCEPTED = Path(__file__).parents[2] / "baselines" / "accepted"


def rows() -> Iterator[dict[str, Any]]:
    """Yield a row for each timed case on a GPU: its time over the roofline time, or of the eager engine the seconds per kernel."""
    for path in sorted(ACCEPTED.glob("*/*.json")):
        baseline = baselines.load(path)
        for outcome in baseline.outcomes:
            case, limit, seconds = outcome.case, outcome.facts.limit, outcome.median(TIME)
            if not outcome.ok or case.device_class == "cpu" or case.engine == "reference" or limit is None or not seconds:
                continue
            row = {"device": baseline.environment.device, "paradigm": outcome.facts.paradigm, "model": case.model, "engine": case.engine,
                   "batch": case.batch, "method": case.method}
            if case.engine == "graph":
                yield {**row, "times": round(seconds / limit.roofline_time, 2)}
            else:
                planned = Planned(case, Request())
                launched = launches(planned, paper(planned).passes)
                yield {**row, "launch": float(f"{(seconds - limit.roofline_time) / launched:.3g}")}


def write_efficiency() -> None:
    """Write the rows into the package."""
    lines = ",\n".join(json.dumps(row) for row in sorted(rows(), key=lambda row: tuple(map(str, row.values()))))
    (PACKAGE / "data" / "efficiency.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
