"""Cases measured in this process: each as the outcome that a run would store, and its artifacts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cachemark.core.result import Outcome
from cachemark.plans.expand import Planned
from cachemark.trial.child import measure
from cachemark.trial.child.bench import Bench
from cachemark.trial.measurement import Measurement, outcome_of

Measured = tuple[Outcome, dict[str, bytes]]


def measured_by(work: Callable[..., Measurement]) -> Callable[..., Measured]:
    """A task of a trial that returns an outcome and its artifacts."""
    def measured(planned: Planned, bench: Bench, *arguments: Any) -> Measured:
        measurement = work(planned, bench, *arguments)
        return outcome_of(planned, measurement), dict(measurement.artifacts)

    return measured


run_case, run_side, see_side, probe, fill = map(measured_by, (measure.run_case, measure.run_side, measure.see_side, measure.probe,
                                                            measure.fill))
