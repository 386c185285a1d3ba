"""Published speed-ups where a method, a budget and a batch meet them: as printed, as allowed by bytes and FLOPs, and as measured here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from ..analysis.formatting import plain
from ..analysis.papers import PaperCell, PaperRow, paper_row, published
from ..cache.layout import Layout
from ..cache.masked_layout import MaskedLayout
from ..contract.method import Method
from ..core.limits import Rates, gpu
from ..core.result import Outcome
from ..core.spec import FULL, Budget
from ..methods.base.calibrated import Calibrated
from ..methods.registry import METHODS
from ..methods.scale_heads.even_attention import even
from ..models.protocol import ModelEntry
from ..models.registry import MODELS
from ..plans.expand import Planned, expand
from ..plans.schema import load
from ..roofline.bill import bill
from ..roofline.kv_bytes import entries
from ..store.db import Store
from .holdings import Holdings
from .stores import opened

NEAR = 0.01  # of the full cache: a budget meets a claim that allocates, or lets live, as much
RECENT = 100  # runs that are looked at
OWN = "own"


@dataclass(frozen=True)
class SpeedClaim:
    """One row of a paper's table. ``baseline`` names its full cache, the row ``against``, that its ``speed_up`` is over, by the printed
    ``seconds`` of an image. ``allocated`` and ``live``: shares of the full cache, None of a masked model. ``least_there`` seconds of an
    image and the ``ideal_there`` speed-up are what the paper's GPU allows, ``least_here`` and ``ideal_here`` what the asked one does.
    ``gpu`` is whose rates those there are. ``measured`` seconds and ``measured_speed_up``, on ``machine``, are of the newest run that has
    the row beside its full cache, else of the newest that has the row; ``remark``: the reason for which the claim is not believed, and
    ``mark`` a word for it; ``notes`` are those of the table."""

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
    speed_up: float | None
    least_there: float
    ideal_there: float
    least_here: float
    ideal_here: float
    measured: float | None = None
    measured_speed_up: float | None = None
    machine: str = ""
    remark: str = ""
    mark: str = ""
    notes: tuple[str, ...] = ()


def speed_claims(
    model: str, rates: Rates, *, methods: Collection[str] = (), budgets: Collection[str] = (), batches: Collection[int] = (),
    dtype: str = "bfloat16", store: str | Path | None = None,
) -> list[SpeedClaim]:
    """The claims about a model. Empty ``methods``, ``budgets`` and ``batches`` meet all; a batch that no paper states meets every one, and
    the budget ``own`` every size. ``rates`` are those of the asked GPU with numbers of ``dtype``; the ``store`` is opened only
    where there are claims."""
    cells = [cell for cell in published().cells if cell.model == model and cell.ours["method"] != FULL
             and (not methods or cell.ours["method"] in methods)
             and (not batches or not cell.batch_stated or cell.batch in batches)]
    cells = [cell for cell in cells if _meets(cell, budgets)]
    with opened(store if cells else None) as found:
        runs = list(_runs(found, model))
    return [_claim(cell, rates, dtype, runs) for cell in cells]


def _claim(cell: PaperCell, rates: Rates, dtype: str, runs: Iterable[tuple[str, list[Outcome]]]) -> SpeedClaim:
    full = published().row(cell.table, cell.against)
    (machine, line), held = _measured(cell, runs), _holdings(cell)
    assert cell.least_time is not None
    assert full.least_time is not None
    here, whole = (_least_time(one, rates, dtype) for one in (cell, full))
    return SpeedClaim(
        cell.table, cell.row, full.row, published().baselines[cell.table], cell.ours["method"],
        held.allocated / held.everything if held else None, held.live / held.everything if held else None, cell.batch,
        cell.batch_stated, cell.hardware, gpu(cell.gpu).device, cell.printed, cell.seconds, line.claimed, cell.least_time,
        full.least_time / cell.least_time, here, whole / here, line.measured, line.reached, machine, line.remark,
        line.mark if line.remark else "", published().notes[cell.table],
    )


def _measured(cell: PaperCell, runs: Iterable[tuple[str, list[Outcome]]]) -> tuple[str, PaperRow]:
    """The row beside what was measured of it: in the newest run that has its full cache too, else in the newest that has it."""
    found = [(machine, line) for machine, outcomes in runs if (line := paper_row(cell, outcomes)).measured]
    return next((one for one in found if one[1].reached), found[0] if found else ("", paper_row(cell, [])))


def _runs(store: Store | None, model: str) -> Iterable[tuple[str, list[Outcome]]]:
    """Machine classes and outcomes of the newest runs that have the model."""
    for record in [] if store is None else [run for run in store.runs() if not run.is_comparison][:RECENT]:
        assert store is not None
        if found := [outcome for outcome in store.outcomes(record.id) if outcome.case.model == model]:
            yield plain(record.environment.machine_class, 60), found


# -- one row on paper ---------------------------------------------------------------------------------------------------
def built(cell: PaperCell) -> tuple[Layout, Method]:
    """The layout and the method of a row; of a method that nobody has calibrated for the model, with even attention."""
    entry: ModelEntry = MODELS.get(cell.model)
    if "variant" in cell.ours:  # whose knobs stand in the plan alone
        case = next(planned.case for planned in _planned(cell.plan, cell.model) if cell.means(planned.case))
        return entry.shape(case.sampling, case.batch), METHODS.get(case.method).build(case.knobs)
    layout = entry.shape(replace(entry.presets["paper"], steps=cell.steps), cell.batch)
    cls: type[Method] = METHODS.get(cell.ours["method"])
    asked = {"calibration": even(layout, cls.name)} if issubclass(cls, Calibrated) else {}
    return layout, cls.build({**asked, **cell.ours.get("knobs", {})})


@cache
def _planned(plan: str, model: str) -> list[Planned]:
    return expand(load(plan).only(models=[model]))


def _least_time(cell: PaperCell, rates: Rates, dtype: str) -> float:
    """Seconds of an image at least, image decoding included."""
    layout, method = built(cell)
    counts = MODELS.get(cell.model).parameter_counts()
    assert counts is not None, "papers' models are counted"
    return bill(method, replace(layout, dtype=getattr(torch, dtype)), counts).least_time(rates) / cell.batch


def _holdings(cell: PaperCell) -> Holdings | None:
    """Of a next-scale model what lives and what is allocated; of a next-token one the same number twice."""
    layout, method = built(cell)
    if isinstance(layout, MaskedLayout):
        return None
    if layout.scales:
        return Holdings.of(method, layout)
    size = entries(method, layout) - layout.layers * (layout.stored - layout.cacheable)  # without the condition, of which no budget is
    return Holdings(size, size, size, layout.layers * layout.cacheable)


def _meets(cell: PaperCell, budgets: Collection[str]) -> bool:
    if not budgets or OWN in budgets:
        return True
    shares = [float(Budget.parse(budget).ratio) for budget in budgets]
    held = _holdings(cell)
    return held is not None and any(abs(share - size / held.everything) <= NEAR for share in shares for size in (held.live, held.allocated))
