"""Cases measured in this process: each as the outcome that a run would store, and its artifacts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cachemark.core.result import Outcome
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.trial.child import measure
from cachemark.trial.child.bench import Bench, NotFinite
from cachemark.trial.child.main import failure
from cachemark.trial.measurement import Measurement, outcome_of

from . import examples
from .examples import REPEATS

Measured = tuple[Outcome, dict[str, bytes]]


def measured_by(work: Callable[..., Measurement]) -> Callable[..., Measured]:
    """A task of a trial that returns an outcome and its artifacts."""
    def measured(planned: Prepared, bench: Bench, *arguments: Any) -> Measured:
        try:
            measurement = work(planned, bench, *arguments)
        except NotFinite as error:
            measurement = failure(error)
        return outcome_of(planned, measurement), dict(measurement.artifacts)

    return measured


def planned(folder: Path, methods: str = '"streaming", "h2o"', device: str = "cpu", repeats: int = REPEATS, **plan: Any) -> list[Prepared]:
    """The cases of a plan over the small model, whose weights are in the folder; timed once where a test looks at no time."""
    file = folder / "plan.toml"
    file.write_text(examples.plan_text(methods, **{"weights": folder / "dot.safetensors", **plan}))
    return [Prepared.of(each, case=replace(each.case, repeats=repeats)) for each in expand(plans.load(str(file)), device)]


run_case, run_side, see_side, probe, fill = map(measured_by, (measure.run_case, measure.run_side, measure.see_side, measure.probe,
                                                            measure.fill))
