"""Published speed figures, beside the least time of the GPU that the paper used and beside what was measured here.

A table of which a row was measured stands first; then those of the same methods, of which this run has other cases. Three columns that
are never mixed: a published figure has another machine and another baseline than ours, so it takes no part in any verdict, rank or
speed-up of this report.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from ..core import limits
from ..core.limits import Limit
from ..core.result import Environment, Outcome, full_latencies, kernels_apart
from ..core.spec import Case
from . import formatting as fmt
from .report_row import is_random

SHARED = {"full", "fewer_steps"}  # rows that stand in several papers: they alone do not make a table one of this run's
TOO_FAST, IMPOSSIBLE = "beyond the ideal", "below the least time"  # marks of a published row that is not believed


@dataclass(frozen=True)
class PaperCell:
    """One row of a paper's table, all of which have one ``hardware``. ``plan`` measures it again and ``ours`` says which of its cases; both
    are empty where there is no such model.

    ``seconds`` of an image as printed, or None; ``least_time`` those that the GPU named by ``gpu`` takes at least, 16 bit, with image
    decoding.
    ``against`` is the row of the same table that its speed-up is against. ``steps`` is 0 where the family has none. ``batch_stated``:
    whether the paper states it."""

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
    least_time: float | None

    @property
    def gap(self) -> str:
        """The printed seconds as a multiple of the least time, as text, or nothing; less than once is more than the GPU can do."""
        if not self.seconds or not self.least_time:
            return ""
        times = self.seconds / self.least_time
        return f"{times:.1f}×" if times >= 0.1 else f"{times:.2g}×"

    @property
    def impossible(self) -> str:
        """The reason for which the printed seconds are not those of an image, or nothing."""
        if not self.seconds or not self.least_time or self.seconds >= self.least_time:
            return ""
        return (f"{fmt.seconds(self.seconds)} are below the {fmt.seconds(self.least_time)} that an image takes at least on that GPU by its "
                "bytes and FLOPs, so they are not the time of a whole image.")

    @property
    def claimed(self) -> float | None:
        """The printed speed-up, where one is printed without times."""
        return float(self.printed["speedup"]) if "speedup" in self.printed and not self.seconds else None

    def means(self, case: Case) -> bool:
        """Return whether a case is this row, whatever device ran it."""
        if case.role not in ("arm", "baseline") or case.codec != "native" or case.engine == "reference" or case.decoder:
            return False
        asked = (self.model, self.batch, self.steps, self.ours["method"], self.ours.get("variant", case.variant))
        if asked != (case.model, case.batch, case.sampling.steps, case.method, case.variant):
            return False
        return all(case.knobs.get(knob) == value for knob, value in self.ours.get("knobs", {}).items())


@dataclass(frozen=True)
class PublishedFigures:
    """All rows; by table the ``baselines``, what the full cache is that its speed-ups are over, and ``notes``: where a paper contradicts
    another, itself or its own arithmetic."""

    cells: tuple[PaperCell, ...]
    baselines: Mapping[str, str]
    notes: Mapping[str, tuple[str, ...]]

    def row(self, table: str, name: str) -> PaperCell:
        """The row of that name."""
        return next(cell for cell in self.cells if (cell.table, cell.row) == (table, name))


@cache
def published() -> PublishedFigures:
    """The figures that come with the package."""
    data = json.loads((resources.files("cachemark") / "data" / "published" / "speed.json").read_text(encoding="utf-8"))
    notes = {table: tuple(lines) for table, lines in data["notes"].items()}
    return PublishedFigures(tuple(PaperCell(**cell) for cell in data["cells"]), data["baselines"], notes)


@dataclass(frozen=True)
class PaperRow:
    """One row as text: what it is, what is published (per image, and as printed), what the GPU allows, what was measured here and how.
    Then its three speed-ups as numbers: by the published seconds or else as printed, by the least times, measured here; and the seconds of
    an image that were ``measured``. None where there is none. ``ideal_here`` is what the device of our case, ``case_key``, allows."""

    name: str
    setting: str
    published: str
    printed: str
    printed_speed_up: str
    least_time: str
    ideal: str
    gap: str
    ours: str
    how: str
    ours_speed_up: str
    claimed: float | None
    possible: float | None
    reached: float | None
    measured: float | None
    remark: str = ""
    ideal_here: str = fmt.DASH
    case_key: str = ""
    mark: str = TOO_FAST  # of a row with a remark


@dataclass(frozen=True)
class PaperTable:
    """One table of a paper. ``baseline`` is its full cache; ``hardware`` is where theirs was measured, ``machine`` where ours. ``here``:
    whether this run measured a row of it; ``plans`` measure all that can be."""

    title: str
    baseline: str
    hardware: str
    machine: str
    lines: tuple[PaperRow, ...]
    notes: tuple[str, ...]
    here: bool
    plans: tuple[str, ...]


def papers(outcomes: Iterable[Outcome], environment: Environment) -> tuple[PaperTable, ...]:
    """The tables of which a method was asked for in this run, those with a measured row first: a full cache alone may belong to several."""
    given, every = list(outcomes), published()
    arms = [outcome.case for outcome in given if outcome.case.role == "arm"]
    rows = [cell for cell in every.cells if cell.model]
    models = {cell.model for cell in rows}
    able = [case for case in arms if case.model in models]
    here = dict.fromkeys(cell.table for cell in rows if any(map(cell.means, able)))
    methods = {case.method for case in arms} - SHARED
    related = dict.fromkeys(cell.table for cell in rows if cell.ours["method"] in methods)
    return tuple(_table(every, title, given, environment, title in here) for title in here | related)


def _table(every: PublishedFigures, title: str, outcomes: Sequence[Outcome], environment: Environment, here: bool) -> PaperTable:
    cells = [cell for cell in every.cells if cell.table == title]
    plans = tuple(dict.fromkeys(cell.plan for cell in cells if cell.plan))
    lines = tuple(_paper_row(cell, every.row(title, cell.against), outcomes) for cell in cells)
    return PaperTable(title, every.baselines[title], cells[0].hardware, environment.machine_class, lines, every.notes[title], here, plans)


def paper_row(cell: PaperCell, outcomes: Sequence[Outcome]) -> PaperRow:
    """A row of the tables, beside what was measured of it in one run."""
    return _paper_row(cell, published().row(cell.table, cell.against), outcomes)


def _paper_row(cell: PaperCell, full: PaperCell, outcomes: Sequence[Outcome]) -> PaperRow:
    mine, its = _pair(cell, full, outcomes)
    batch = f"batch {cell.batch}" + ("" if cell.batch_stated else ", not stated")
    ideal = full.least_time / cell.least_time if cell.least_time and full.least_time else None
    claimed = full.seconds / cell.seconds if cell.seconds and full.seconds else cell.claimed
    reached = _speed_up(mine, its)
    latency = mine.median("latency") if mine is not None and mine.ok else None
    printed = "; ".join(f"{name} {text}" for name, text in cell.printed.items() if name != "speedup") or fmt.DASH
    return PaperRow(
        cell.row, batch, fmt.seconds(cell.seconds) if cell.seconds else fmt.DASH, printed, cell.printed.get("speedup", fmt.DASH),
        fmt.seconds(cell.least_time) if cell.least_time else fmt.DASH, fmt.times(ideal) if ideal else fmt.DASH,
        cell.gap or fmt.DASH, *_measured(cell, mine),
        reached if isinstance(reached, str) else fmt.times(reached), claimed, ideal, reached if isinstance(reached, float) else None,
        latency / cell.batch if latency else None,
        cell.impossible or (limits.artefact(claimed, ideal) if claimed and ideal else ""),
        _allowed(mine, its), mine.case.key if mine is not None else "", IMPOSSIBLE if cell.impossible else TOO_FAST,
    )


def _allowed(mine: Outcome | None, its: Outcome | None) -> str:
    """The speed-up that the device of both allows, by the limits that stand in their facts, of whatever version."""
    if mine is None or its is None or mine is its:
        return fmt.DASH
    try:
        return fmt.times(limits.ideal(*(Limit.from_json(one.facts["limit"]) for one in (its, mine))))
    except (KeyError, TypeError, ZeroDivisionError):
        return fmt.DASH


def _pair(cell: PaperCell, full: PaperCell, outcomes: Sequence[Outcome]) -> tuple[Outcome | None, Outcome | None]:
    """The outcomes that are this row and its full cache. Where a run has several, those that can be compared: an OOM in one dtype must not
    hide a row that ran in another, nor a full cache in one the full cache in the other."""
    mine, its = _found(cell, outcomes), _found(full, outcomes)
    if cell == full or not mine or not its:
        return max(mine, key=_ran, default=None), max(its, key=_ran, default=None)
    return max(((one, other) for one in mine for other in its), key=lambda pair: _comparable(*pair))


def _comparable(mine: Outcome, its: Outcome) -> tuple[bool, ...]:
    """By how much a pair is to be preferred, what weighs most first."""
    alike = its.ok and _alike(mine.case, its.case)
    return mine.ok, alike, isinstance(_speed_up(mine, its), float), mine.case.cell == its.case.cell, its.ok


def _ran(outcome: Outcome) -> bool:
    return outcome.ok


def _alike(one: Case, two: Case) -> bool:
    return all(getattr(one, name) == getattr(two, name) for name in ("dtype", "engine", "device_class", "weights"))


def _found(cell: PaperCell, outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if cell.model and cell.means(outcome.case)]


def _measured(cell: PaperCell, outcome: Outcome | None) -> tuple[str, str]:
    """Seconds of an image, and dtype and engine; or why there is none."""
    if not cell.model:
        return fmt.DASH, "no such model here"
    if outcome is None:
        return fmt.DASH, "not in this run"
    latency = outcome.median("latency")
    if not outcome.ok or latency is None:
        return fmt.DASH, str(outcome.status).replace("_", " ")
    case, noise = outcome.case, "; random weights: quality not measured" if is_random(outcome.case) else ""
    return fmt.seconds(latency / case.batch), f"{case.dtype}, {case.engine}{noise}"


def _speed_up(mine: Outcome | None, its: Outcome | None) -> float | str:
    """Over the table's own baseline, if both ran alike: another kernel, dtype or engine would be what is measured; else the word for it."""
    if mine is None or its is None or not (mine.ok and its.ok) or mine is its:
        return fmt.DASH
    alike = _alike(mine.case, its.case) and kernels_apart(mine, its) is None
    above = full_latencies(mine, its) if mine.case.cell == its.case.cell else its.samples.get("latency", ())
    below = mine.median("latency")
    if not alike or mine.facts.get("quality_only") or not above or not below:
        return "not compared"
    return statistics.median(above) / below
