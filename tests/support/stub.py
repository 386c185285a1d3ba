"""An executor without measurements, for everything around a trial: outcomes depend on the case alone, and take a moment."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from cachemark.core.limits import Rates
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case
from cachemark.machine.environment import environment
from cachemark.plans import schema as plans
from cachemark.plans.planned import Prepared
from cachemark.trial.executors import local
from cachemark.trial.measurement import Measurement, outcome_of
from cachemark.trial.request import TrialRequest
from cachemark.trial.supervisor import Finished, always, unheard

CELLS = [{"model": "llamagen-b", "methods": ["window", "streaming", "random"], "budgets": ["1/2", "1/4"]},
         {"model": "llamagen-l", "methods": ["window", "streaming"], "budgets": ["1/2", "1/4"]}]


def tiny_plan(**more: object) -> plans.Plan:
    """Twelve cases of two models with random weights, which are never loaded."""
    return plans.Plan.model_validate({"name": "stub", "cells": CELLS} | more)


def answering(patch: pytest.MonkeyPatch, answer: Callable[[Prepared, TrialRequest], Outcome]) -> list[tuple[TrialRequest, list[str]]]:
    """Answer each case at once where a trial would start. Return the request and the cases' labels of each trial."""
    asked: list[tuple[TrialRequest, list[str]]] = []

    def run_trials(planned: Sequence[Prepared], request: TrialRequest, *_: object, **__: object) -> Iterator[Finished]:
        asked.append((request, [each.case.label for each in planned]))
        yield from (Finished(answer(each, request), {}) for each in planned)

    patch.setattr(local, "run_trials", run_trials)
    return asked


@dataclass
class Stub:
    """``before`` is called with each case that begins."""

    before: Callable[[Case], None] = lambda case: None
    notes: Sequence[str] = ()
    environment = staticmethod(environment)
    rates = staticmethod(lambda device, threads, dtypes: dict[str, Rates]())

    def run(
        self, groups: Sequence[Sequence[Prepared]], request: TrialRequest, started: Callable[[Prepared], None],
        admit: Callable[[Prepared], str] = always, advanced: Callable[[Prepared, int], None] = unheard) -> Iterator[Finished]:
        for planned in (p for group in groups for p in group):
            if reason := admit(planned):
                yield Finished(outcome_of(planned, Measurement(Status.NOT_REACHED, log=reason)), {})
                continue
            started(planned)
            self.before(planned.case)
            samples = {"latency": [1.0, 2.0, 3.0], "kv_allocated": [4096.0]}
            measured = Measurement(Status.OK, samples, "random weights", seconds=2.0)
            yield Finished(outcome_of(planned, measured), {"tokens.bin": planned.case.key.encode()})
