"""Published speedups of a model: as printed, as bytes and FLOPs allow, and as measured here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from cachemark.analysis.papers import PaperCell, PaperRow, paper_row, published
from cachemark.cache.layout import Layout
from cachemark.cache.masked_layout import MaskedLayout
from cachemark.contract.method import Method
from cachemark.core.formatting import plain
from cachemark.core.limits import Rates, gpu
from cachemark.core.result import Outcome
from cachemark.core.spec import FULL, Budget
from cachemark.methods.base.calibrations import Calibrated, even
from cachemark.methods.registry import METHODS
from cachemark.models.protocol import ModelEntry
from cachemark.models.registry import MODELS
from cachemark.plans.expand import expand
from cachemark.plans.planned import Planned
from cachemark.plans.schema import load
from cachemark.roofline.bill import bill
from cachemark.roofline.memory import entries
from cachemark.store.db import Store
from cachemark.workflows.session import opened

from .entry_counts import EntryCounts, entry_counts

NEAR = 0.01  # of the full cache: a budget matches a claim that allocates, or lets live, as much
RECENT = 100  # the newest runs, which are searched
OWN = "own"


@dataclass(frozen=True)
class SpeedClaim:
    """One row of a paper's table.

    ``baseline`` describes its full cache, the row ``against``, that ``speedup`` is over, by the printed ``seconds`` per image.
    ``allocated`` and ``live``: fractions of the full cache, None for a masked model. ``roofline_there`` (seconds per image) and
    ``speedup_bound_there`` are for the paper's ``gpu``, ``roofline_here`` and ``speedup_bound_here`` for the requested one. ``measured``
    seconds and ``measured_speedup``, on ``machine``, come from the newest run with the row and its full cache, else from the newest with
    the row. ``remark``: why the claim is implausible, and ``mark`` a word for it; ``notes``: notes of the table."""

    table: str
    row: str
    against: str
    baseline: str
    method: str
    allocated: float | None
    live: float | None
    batch: int
    batch_stated: bool
    hardware: str
    gpu: str
    printed: Mapping[str, str]
    seconds: float | None
    speedup: float | None
    roofline_there: float
    speedup_bound_there: float
    roofline_here: float
    speedup_bound_here: float
    measured: float | None = None
    measured_speedup: float | None = None
    machine: str = ""
    remark: str = ""
    mark: str = ""
    notes: tuple[str, ...] = ()


def speed_claims(
    model: str, rates: Rates, *, methods: Collection[str] = (), budgets: Collection[str] = (), batches: Collection[int] = (),
    dtype: str = "bfloat16", store: str | Path | None = None,
) -> list[SpeedClaim]:
    """Return the claims about a model.

    Empty ``methods``, ``budgets`` and ``batches`` match every claim, as does a batch that no paper states, and the budget ``own``.
    ``rates``: of the requested GPU with numbers of ``dtype``. The ``store`` is opened only if there are claims."""
    cells = [cell for cell in published().cells if cell.model == model and cell.ours["method"] != FULL
             and (not methods or cell.ours["method"] in methods)
             and (not batches or not cell.batch_stated or cell.batch in batches)
             and _meets(cell, budgets)]
    with opened(store if cells else None) as source:
        runs = list(_runs(source, model))
    return [_claim(cell, rates, dtype, runs) for cell in cells]


def _claim(cell: PaperCell, rates: Rates, dtype: str, runs: Iterable[tuple[str, list[Outcome]]]) -> SpeedClaim:
    full = published().row(cell.table, cell.against)
    (machine, row), counts = _measured(cell, runs), _entry_counts(cell)
    assert cell.roofline_time is not None
    assert full.roofline_time is not None
    least, full_least = (_roofline_time(cell.table, name, rates, dtype) for name in (cell.row, full.row))
    return SpeedClaim(
        cell.table, cell.row, full.row, published().baselines[cell.table], cell.ours["method"],
        counts.allocated / counts.full if counts else None, counts.live / counts.full if counts else None, cell.batch,
        cell.batch_stated, cell.hardware, gpu(cell.gpu).device, cell.printed, cell.seconds, row.claimed, cell.roofline_time,
        full.roofline_time / cell.roofline_time, least, full_least / least, row.measured, row.reached, machine, row.remark,
        row.mark if row.remark else "", published().notes[cell.table],
    )


def _measured(cell: PaperCell, runs: Iterable[tuple[str, list[Outcome]]]) -> tuple[str, PaperRow]:
    """Return the row from the newest run that has it with its full cache, else from the newest that has it."""
    rows = [(machine, row) for machine, outcomes in runs if (row := paper_row(cell, outcomes)).measured]
    return next((pair for pair in rows if pair[1].reached), rows[0] if rows else ("", paper_row(cell, [])))


def _runs(store: Store | None, model: str) -> Iterable[tuple[str, list[Outcome]]]:
    """Yield machine class and outcomes of the newest runs that measured the model."""
    if store is None:
        return
    for record in [run for run in store.runs() if not run.is_comparison][:RECENT]:
        if outcomes := [outcome for outcome in store.outcomes(record.id) if outcome.case.model == model]:
            yield plain(record.environment.machine_class, 60), outcomes


# -- one row by arithmetic ----------------------------------------------------------------------------------------------
def built(cell: PaperCell) -> tuple[Layout, Method]:
    """Return the layout and the method of a row, with even attention if the model has no calibration."""
    entry: ModelEntry = MODELS.get(cell.model)
    if "variant" in cell.ours:  # its parameters are in the plan alone
        case = next(planned.case for planned in _planned(cell.plan, cell.model) if cell.means(planned.case))
        return entry.shape(case.sampling, case.batch), METHODS.get(case.method).build(case.parameters)
    layout = entry.shape(replace(entry.presets["paper"], steps=cell.steps), cell.batch)
    cls: type[Method] = METHODS.get(cell.ours["method"])
    calibration = {"calibration": even(layout, cls.name)} if issubclass(cls, Calibrated) else {}
    return layout, cls.build({**calibration, **cell.ours.get("parameters", {})})


@cache
def _planned(plan: str, model: str) -> list[Planned]:
    return expand(load(plan).only(models=[model]))


@cache
def _roofline_time(table: str, row: str, rates: Rates, dtype: str) -> float:
    """Return the roofline time of an image in seconds, image decoding included."""
    cell = published().row(table, row)
    layout, method = built(cell)
    counts = MODELS.get(cell.model).parameter_counts()
    assert counts is not None, "papers' models are counted"
    return bill(method, replace(layout, dtype=getattr(torch, dtype)), counts).roofline_time(rates) / cell.batch


def _entry_counts(cell: PaperCell) -> EntryCounts | None:
    """Return the entries of a row's method; None for a masked model.

    For a next-token model, live, peak and allocated entries are equal.
    """
    layout, method = built(cell)
    if isinstance(layout, MaskedLayout):
        return None
    if layout.scales:
        return entry_counts(method, layout)
    size = entries(method, layout) - layout.layers * (layout.stored - layout.cacheable)  # without the condition, which no budget includes
    return EntryCounts(size, size, size, layout.layers * layout.cacheable)


def _meets(cell: PaperCell, budgets: Collection[str]) -> bool:
    if not budgets or OWN in budgets:
        return True
    fractions = [float(Budget.parse(budget).ratio) for budget in budgets]
    counts = _entry_counts(cell)
    return counts is not None and any(abs(fraction - size / counts.full) <= NEAR
                                      for fraction in fractions for size in (counts.live, counts.allocated))
