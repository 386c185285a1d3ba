"""Time and memory of a case at a batch: measured, or predicted from the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from ..analysis.case_group import CaseGroup
from ..analysis.report_row import ReportRow
from ..cache.codec import codec
from ..cache.layout import Layout
from ..core.errors import Unsupported
from ..core.limits import Rates
from ..core.spec import Case, canonical
from ..core.units import PEAK, TIME
from ..models.costs import case_bill
from ..models.protocol import ModelEntry
from ..roofline.bill import ParameterCounts
from ..roofline.memory import allocated, weight_bytes
from ..roofline.operations import Bill
from ..stats.intervals import Interval
from ..trial.child.bench import method_factory

MEASURED, PREDICTED, BOUND = "measured", "predicted", "bound"  # what a forecast stands on


@dataclass(frozen=True)
class Forecast:
    """Speed and memory of a case at a ``batch``.

    ``gain`` is the speedup over the full cache at this batch, ``allowed`` its roofline bound; ``seconds`` and ``memory`` (bytes, weights
    included) are per batch. ``basis``: measured, predicted, or only bounded. ``doubt``: why the gain is implausible; ``no_speedup``: why a
    measured case has none.
    """

    batch: int
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
    """Forecasts for the cases of one model, sampling and dtype, from ``groups`` measured on one device."""

    def __init__(self, entry: ModelEntry, full: Case, rates: Rates, groups: Sequence[CaseGroup]) -> None:
        self._entry, self._full, self._rates, self._groups = entry, full, rates, groups
        self._bills: dict[tuple[str, int], Bill] = {}

    def full(self, batch: int) -> Forecast:
        """Return the forecast of the full cache."""
        least = self.roofline_time(self._full, batch)
        near = min((row for row in (group.full for group in self._groups) if row and row.median(TIME)),
                   key=lambda row: _apart(row.case.batch, batch), default=None)
        unchanged = Interval(1.0, 1.0, 1.0, 0.0, 0)
        memory = self._memory(self._full, batch, near)
        if near is None:
            return Forecast(batch, unchanged, 1.0, least, memory, BOUND)
        latency = near.median(TIME) or 0.0
        if near.case.batch == batch:
            return Forecast(batch, unchanged, 1.0, latency, memory, MEASURED)
        slower = max(latency / self.roofline_time(self._full, near.case.batch), 1.0)
        return Forecast(batch, unchanged, 1.0, least * slower, memory, PREDICTED)

    def candidate(self, case: Case, batch: int) -> Forecast:
        """Return the forecast of a method with its parameters."""
        full, allowed = self.full(batch), self.allowed(case, batch)
        measured = sorted(self._measured(case), key=lambda pair: _apart(pair[1].case.batch, batch))
        near = next(((group, row) for group, row in measured if row.speedup is not None), None)
        if near is None:
            return self._bound(case, full, allowed, measured[0][1] if measured else None)
        _, row = near
        assert row.speedup is not None
        memory = self._memory(case, batch, row)
        if row.case.batch == batch:
            return Forecast(batch, row.speedup, allowed, row.median(TIME) or 0.0, memory, MEASURED, row.implausible)
        there = self.allowed(case, row.case.batch)
        value, low = (allowed * min(end / there, 1.0) for end in (row.speedup.value, row.speedup.low))
        gain = Interval(value, low, allowed, row.speedup.confidence, row.speedup.n)
        return Forecast(batch, gain, allowed, full.seconds / value, memory, PREDICTED, row.implausible)

    def _bound(self, case: Case, full: Forecast, allowed: float, row: ReportRow | None) -> Forecast:
        """Return the forecast of a case without a known speedup; ``row``: its measurement, if any."""
        batch, latency = full.batch, row.median(TIME) if row and row.case.batch == full.batch else None
        why = "" if row is None else row.no_speedup
        return Forecast(batch, Interval(allowed, allowed, allowed, 0.0, 0), allowed, latency or full.seconds / allowed,
                        self._memory(case, batch, row), BOUND, no_speedup=why)

    def allowed(self, case: Case, batch: int) -> float:
        """Return the roofline bound on the speedup over the full cache."""
        return self.roofline_time(self._full, batch) / self.roofline_time(case, batch)

    def roofline_time(self, case: Case, batch: int) -> float:
        """Return the roofline time of a batch in seconds."""
        return self._bill(case, batch).roofline_time(self._rates)

    def _measured(self, case: Case) -> list[tuple[CaseGroup, ReportRow]]:
        mine = identity(case)
        return [(group, row) for group in self._groups for row in group.candidates if row.ok and identity(row.case) == mine]

    def _memory(self, case: Case, batch: int, near: ReportRow | None) -> int:
        """Return bytes: weights plus the scaled peak of the nearest batch, else plus the method's allocation."""
        layout = self._layout(batch)
        weights = weight_bytes(layout, self._counts)
        peak = near.median(PEAK) if near is not None else None
        if near is not None and peak is not None:
            return weights + round(peak * batch / near.case.batch)
        return weights + allocated(method_factory(case)(), layout, codec(case.codec))

    @cached_property
    def _counts(self) -> ParameterCounts:
        if (parts := self._entry.parameter_counts()) is None:
            raise _uncounted(self._entry.name)
        return parts

    def _layout(self, batch: int) -> Layout:
        return replace(self._entry.shape(self._full.sampling, batch), dtype=getattr(torch, self._full.dtype))

    def _bill(self, case: Case, batch: int) -> Bill:
        key = identity(case), batch
        if key not in self._bills:
            total = case_bill(replace(case, batch=batch, dtype=self._full.dtype), self._entry, method_factory(case)())
            if total is None:
                raise _uncounted(case.model)
            self._bills[key] = total
        return self._bills[key]


def _uncounted(model: str) -> Unsupported:
    return Unsupported(f"No FLOP model for {model}.", remedy="Set parameter_counts in its ModelEntry.")


def _apart(first: int, second: int) -> float:
    """Return the larger of two batches over the smaller."""
    return max(first / second, second / first)
