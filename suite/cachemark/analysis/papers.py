"""Published speed, roofline time on the paper's GPU, and our measurement.

Published values have other machines and baselines, so they affect no verdict, rank or speedup.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from ..core import formatting as fmt
from ..core.result import Environment, Outcome, full_latencies, kernels_apart
from ..core.shipped_plans import run_command
from ..core.spec import Case
from ..core.units import TIME
from .device_limits import implausible
from .report_row import is_random

SHARED = {"full", "fewer_steps"}  # rows of several papers, which alone do not assign a table to a run
TOO_FAST, IMPOSSIBLE = "implausible speedup", "below roofline time"  # marks of a published row that is not believed


@dataclass(frozen=True)
class PaperCell:
    """Row of a paper's table.

    ``plan`` measures it again and ``ours`` identifies the case (both empty without such a model). ``seconds`` per image as printed;
    ``roofline_time`` on the ``gpu``, 16 bit, with image decoding. ``against`` is the row of its baseline; ``steps`` is 0 if the model has
    none.
    """

    plan: str
    table: str
    row: str
    against: str
    model: str
    ours: Mapping[str, Any]
    steps: int
    batch: int
    batch_stated: bool
    hardware: str
    gpu: str
    seconds: float | None
    printed: Mapping[str, str]
    roofline_time: float | None

    @property
    def gap(self) -> str:
        """Printed seconds over the roofline time, as text."""
        if not self.seconds or not self.roofline_time:
            return ""
        times = self.seconds / self.roofline_time
        return f"{times:.1f}×" if times >= 0.1 else f"{times:.2g}×"

    @property
    def impossible(self) -> str:
        """Reason why the printed seconds are impossible, or nothing."""
        if not self.seconds or not self.roofline_time or self.seconds >= self.roofline_time:
            return ""
        return f"{fmt.seconds(self.seconds)} is below the roofline time of one image on that GPU ({fmt.seconds(self.roofline_time)})."

    @property
    def claimed(self) -> float | None:
        """Printed speedup, if printed without times."""
        return float(self.printed["speedup"]) if "speedup" in self.printed and not self.seconds else None

    def means(self, case: Case) -> bool:
        """Return whether a case is this row, on any device."""
        if case.role not in ("candidate", "baseline") or case.codec != "native" or case.engine == "reference" or case.decoder:
            return False
        printed_case = (self.model, self.batch, self.steps, self.ours["method"], self.ours.get("variant", case.variant))
        if printed_case != (case.model, case.batch, case.sampling.steps, case.method, case.variant):
            return False
        return all(case.parameters.get(parameter) == value for parameter, value in self.ours.get("parameters", {}).items())


@dataclass(frozen=True)
class PublishedSpeeds:
    """All rows, and ``baselines`` and ``notes`` by table."""

    cells: tuple[PaperCell, ...]
    baselines: Mapping[str, str]
    notes: Mapping[str, tuple[str, ...]]

    def row(self, table: str, name: str) -> PaperCell:
        return next(cell for cell in self.cells if (cell.table, cell.row) == (table, name))


@cache
def published() -> PublishedSpeeds:
    """Return the bundled published values."""
    data = json.loads((resources.files("cachemark") / "data" / "published" / "speed.json").read_text(encoding="utf-8"))
    notes = {table: tuple(lines) for table, lines in data["notes"].items()}
    return PublishedSpeeds(tuple(PaperCell(**cell) for cell in data["cells"]), data["baselines"], notes)


@dataclass(frozen=True)
class PaperRow:
    """Row of a paper's table with our measurement.

    Speedups: ``claimed`` by the paper, ``possible`` by roofline times, ``reached`` here by the case ``case_key``. ``measured`` is our time
    per image in seconds; ``how`` names dtype and engine, or the reason for a missing time. ``remark`` and ``mark`` flag implausible values.
    """

    cell: PaperCell
    claimed: float | None
    possible: float | None
    reached: float | None
    measured: float | None
    how: str
    no_speedup: str
    case_key: str
    remark: str
    mark: str

    @property
    def printed(self) -> str:
        """Other printed values of the row."""
        return "; ".join(f"{name} {text}" for name, text in self.cell.printed.items() if name != "speedup") or fmt.DASH


@dataclass(frozen=True)
class PaperTable:
    """Table of a paper; ``here``: this run measured a row of it; ``plans`` measure all that can be."""

    title: str
    baseline: str
    hardware: str
    machine: str
    lines: tuple[PaperRow, ...]
    notes: tuple[str, ...]
    here: bool
    plans: tuple[str, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that run its plans."""
        return tuple(map(run_command, self.plans))


def papers(outcomes: Iterable[Outcome], environment: Environment) -> tuple[PaperTable, ...]:
    """Return the tables of the methods of this run, those with a measured row first."""
    outcomes, figures = list(outcomes), published()
    candidates = [outcome.case for outcome in outcomes if outcome.case.role == "candidate"]
    cells = [cell for cell in figures.cells if cell.model]
    models = {cell.model for cell in cells}
    published_cases = [outcome.case for outcome in outcomes if outcome.case.model in models]
    here = dict.fromkeys(cell.table for cell in cells if any(
        cell.means(case) for case in published_cases
        if case.role == "candidate" or figures.row(cell.table, cell.against).model != cell.model))  # which is a model of its own
    methods = {case.method for case in candidates} - SHARED
    related = dict.fromkeys(cell.table for cell in cells if cell.ours["method"] in methods)
    return tuple(_table(figures, title, outcomes, environment, title in here) for title in here | related)


def _table(figures: PublishedSpeeds, title: str, outcomes: Sequence[Outcome], environment: Environment, here: bool) -> PaperTable:
    cells = [cell for cell in figures.cells if cell.table == title]
    plans = tuple(dict.fromkeys(cell.plan for cell in cells if cell.plan))
    lines = tuple(paper_row(cell, outcomes) for cell in cells)
    return PaperTable(title, figures.baselines[title], cells[0].hardware, environment.machine_class, lines, figures.notes[title], here,
                      plans)


def paper_row(cell: PaperCell, outcomes: Sequence[Outcome]) -> PaperRow:
    """Return a row with our measurement."""
    full = published().row(cell.table, cell.against)
    mine, its = _pair(cell, full, outcomes)
    possible = full.roofline_time / cell.roofline_time if cell.roofline_time and full.roofline_time else None
    claimed = full.seconds / cell.seconds if cell.seconds and full.seconds else cell.claimed
    latency = mine.median(TIME) if mine is not None and mine.ok else None
    reached, no_speedup = _speedup(mine, its)
    return PaperRow(
        cell, claimed, possible, reached, latency / cell.batch if latency else None, _how(cell, mine), no_speedup,
        mine.case.key if mine is not None else "",
        cell.impossible or (implausible(claimed, possible) if claimed and possible else ""),
        IMPOSSIBLE if cell.impossible else TOO_FAST,
    )


def _pair(cell: PaperCell, full: PaperCell, outcomes: Sequence[Outcome]) -> tuple[Outcome | None, Outcome | None]:
    """Return the results of a row and its baseline, of several the most comparable pair."""
    mine, its = ([o for o in outcomes if each.model and each.means(o.case)] for each in (cell, full))
    if cell == full or not mine or not its:
        return max(mine, key=lambda o: o.ok, default=None), max(its, key=lambda o: o.ok, default=None)
    return max(((outcome, other) for outcome in mine for other in its), key=lambda pair: _comparable(*pair))


def _comparable(mine: Outcome, its: Outcome) -> tuple[bool, ...]:
    alike = its.ok and _alike(mine.case, its.case)
    return mine.ok, alike, _speedup(mine, its)[0] is not None, mine.case.cell == its.case.cell, its.ok


def _alike(case: Case, other: Case) -> bool:
    """Return whether times compare: equal settings, and equal weights, or random ones of two models."""
    weights = case.weights == other.weights or (case.model != other.model and is_random(case) and is_random(other))
    return weights and all(getattr(case, name) == getattr(other, name) for name in ("dtype", "engine", "device_class"))


def _how(cell: PaperCell, outcome: Outcome | None) -> str:
    if not cell.model:
        return "no such model here"
    if outcome is None:
        return "not in this run"
    if not outcome.ok or outcome.median(TIME) is None:
        return str(outcome.status).replace("_", " ")
    noise = "; random weights: quality not measured" if is_random(outcome.case) else ""
    return f"{outcome.case.dtype}, {outcome.case.engine}{noise}"


def _speedup(mine: Outcome | None, its: Outcome | None) -> tuple[float | None, str]:
    if mine is None or its is None or not (mine.ok and its.ok) or mine is its:
        return None, ""
    alike = _alike(mine.case, its.case) and kernels_apart(mine, its) is None
    above = full_latencies(mine, its) if mine.case.cell == its.case.cell else its.samples.get(TIME, ())
    below = mine.median(TIME)
    if not alike or mine.facts.quality_only or not above or not below:
        return None, "not compared"
    return statistics.median(above) / below, ""
