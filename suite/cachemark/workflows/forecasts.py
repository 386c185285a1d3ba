"""Time and memory of a case at a batch: measured, or predicted from the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..analysis.case_group import CaseGroup
from ..analysis.report_row import ReportRow
from ..cache.codecs import codec
from ..core.limits import Rates
from ..core.spec import Case, canonical
from ..core.units import PEAK, TIME
from ..models.protocol import ModelEntry
from ..roofline.bill import bill
from ..roofline.memory import allocated, weight_bytes
from ..stats.intervals import Interval
from ..trial.child.bench import method_factory
from .roofline import operation_counts

MEASURED, PREDICTED, BOUND = "measured", "predicted", "bound"  # possible bases of a forecast


@dataclass(frozen=True)
class Forecast:
    """Speed and memory of a case at a batch.

    ``gain`` is the speedup over the full cache, ``allowed`` its roofline bound; ``seconds`` and ``memory`` (bytes, weights included) are
    per batch. ``basis``: measured, predicted, or only bounded. ``doubt``: why the gain is implausible; ``no_speedup``: why a measured case
    lacks a gain.
    """

    gain: Interval
    allowed: float
    seconds: float
    memory: int
    basis: str
    doubt: str = ""
    no_speedup: str = ""


def identity(case: Case) -> str:
    """Return a name of a method with its parameters that does not depend on batch, device and weights."""
    return canonical([case.method, case.variant, dict(case.parameters), case.codec, case.budget, vars(case.sampling), dict(case.decoder)])


class Forecaster:
    """Forecasts at one batch for the cases of one model, sampling and dtype.

    ``groups``: results of one device. ``full``: forecast of the full cache. Raises Unsupported for a model without a FLOP model.
    """

    def __init__(self, entry: ModelEntry, case: Case, rates: Rates, groups: Sequence[CaseGroup], batch: int) -> None:
        self._entry, self._case, self._rates, self._groups, self._batch = entry, case, rates, groups, batch
        self._counts = operation_counts(entry)
        self._seconds: dict[tuple[str, int], float] = {}
        near = min((row for row in (group.full for group in groups) if row and row.median(TIME)), key=self._distance, default=None)
        seconds, basis = self._roofline_time(case, batch), BOUND
        if near is not None:
            latency, basis = near.median(TIME) or 0.0, MEASURED if near.case.batch == batch else PREDICTED
            slower = max(latency / self._roofline_time(case, near.case.batch), 1.0)
            seconds = latency if basis == MEASURED else seconds * slower
        self.full = Forecast(Interval(1.0, 1.0, 1.0, 0.0, 0), 1.0, seconds, self._memory(case, near), basis)

    def candidate(self, case: Case) -> Forecast:
        """Return the forecast of a method with its parameters, from its row at the nearest batch."""
        mine, allowed = identity(case), self._allowed(case, self._batch)
        measured = sorted((row for group in self._groups for row in group.candidates if row.ok and identity(row.case) == mine),
                          key=self._distance)
        near = next((row for row in measured if row.speedup is not None), None)
        if near is None:
            row = measured[0] if measured else None
            seconds = row.median(TIME) if row and row.case.batch == self._batch else None
            return Forecast(Interval(allowed, allowed, allowed, 0.0, 0), allowed, seconds or self.full.seconds / allowed,
                            self._memory(case, row), BOUND, no_speedup=row.no_speedup if row else "")
        assert near.speedup is not None
        memory = self._memory(case, near)
        if near.case.batch == self._batch:
            return Forecast(near.speedup, allowed, near.median(TIME) or 0.0, memory, MEASURED, near.implausible)
        there = self._allowed(case, near.case.batch)
        value, low = (allowed * min(end / there, 1.0) for end in (near.speedup.value, near.speedup.low))
        gain = Interval(value, low, allowed, near.speedup.confidence, near.speedup.n)
        return Forecast(gain, allowed, self.full.seconds / value, memory, PREDICTED, near.implausible)

    def _distance(self, row: ReportRow) -> float:
        """Return the larger of two batches over the smaller."""
        return max(row.case.batch / self._batch, self._batch / row.case.batch)

    def _allowed(self, case: Case, batch: int) -> float:
        return self._roofline_time(self._case, batch) / self._roofline_time(case, batch)

    def _roofline_time(self, case: Case, batch: int) -> float:
        key = identity(case), batch
        if key not in self._seconds:
            layout = replace(self._entry.shape(case.sampling, batch), dtype=getattr(torch, self._case.dtype))
            costs = bill(method_factory(case)(), layout, self._counts, codec=codec(case.codec))
            self._seconds[key] = costs.roofline_time(self._rates)
        return self._seconds[key]

    def _memory(self, case: Case, near: ReportRow | None) -> int:
        """Return bytes: weights plus the scaled peak of the nearest batch, else plus the method's allocation."""
        layout = replace(self._entry.shape(self._case.sampling, self._batch), dtype=getattr(torch, self._case.dtype))
        weights, peak = weight_bytes(layout, self._counts), near.median(PEAK) if near is not None else None
        if near is not None and peak is not None:
            return weights + round(peak * self._batch / near.case.batch)
        return weights + allocated(method_factory(case)(), layout, codec(case.codec))
