"""The estimate of the time left, on a clock that the test sets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from cachemark.core.result import Outcome, Status
from cachemark.core.spec import MAX_BATCH
from cachemark.plans.expand import Planned, expand
from cachemark.workflows.time_left import TimeLeft, generated
from support import stub


@dataclass
class Clock:
    """A clock that is set."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def cases() -> list[Planned]:
    return expand(stub.tiny_plan())


def images(planned: Planned) -> float:
    return sum(size * times for size, times in generated(planned))


def test_images_cost_what_they_cost_so_far_of_the_same_model_where_it_has_run(cases: list[Planned]) -> None:
    """Seconds per image: 2 of the first model, 3 of the second."""
    clock = Clock()
    left = TimeLeft(cases, clock=clock)
    models = list(dict.fromkeys(each.case.model for each in cases))
    pace, remaining = {models[0]: 2.0, models[1]: 3.0}, list(cases)
    assert left.seconds() is None
    while remaining:
        case = remaining.pop(0)
        left.started(case)
        clock.now += images(case) * pace[case.case.model]
        left.ended(Outcome(case.case, Status.OK, {"latency": [1.0]}, "random weights"))
        seen = models[1] if case.case.model == models[1] else models[0]
        expected = sum(images(each) * pace[each.case.model if seen == models[1] else models[0]] for each in remaining)
        assert left.seconds() == (pytest.approx(expected) if remaining else None)


def test_stored_seconds_are_used_and_devices_share_them(cases: list[Planned]) -> None:
    clock = Clock()
    left = TimeLeft(cases, lambda key: 10.0, clock)
    assert left.seconds() == 10.0 * len(cases)
    left.started(cases[0])
    left.started(cases[1])
    assert left.seconds() == 10.0 * len(cases) / 2


def test_a_running_case_counts_once_a_twentieth_of_it_is_done(cases: list[Planned]) -> None:
    clock, first = Clock(), cases[0]
    left = TimeLeft([first], clock=clock)
    left.started(first)
    assert left.seconds() is None
    clock.now += 1.0
    left.advanced(first, first.case.batch)
    estimate = left.seconds()
    assert estimate == pytest.approx(images(first) / first.case.batch - 1)
    clock.now += 0.9
    assert left.seconds() == pytest.approx(estimate - 0.9), "a long batch does not make the estimate grow"
    assert 0 < left.fraction(first.case.key) < 1
    left.started(first)
    assert left.fraction(first.case.key) == 0.0, "measured again"


def test_a_search_for_the_largest_batch_has_no_estimate(cases: list[Planned]) -> None:
    searched = replace(cases[0], case=replace(cases[0].case, evaluation={MAX_BATCH: {"limit": 0}}))
    assert TimeLeft([searched], lambda key: 10.0).seconds() is None
    assert TimeLeft().seconds() is None
