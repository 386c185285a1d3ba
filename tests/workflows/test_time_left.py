"""The estimate of the time left, on a clock that the test sets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from cachemark.core.result import Outcome, Status
from cachemark.core.spec import MAX_BATCH
from cachemark.plans.expand import Planned, expand
from cachemark.plans.price import batches
from cachemark.workflows.price import TimeLeft
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
    return sum(size * times for size, times in batches(planned, forced=1.0))


def test_the_pace_is_of_the_same_model_where_it_has_run(cases: list[Planned]) -> None:
    clock = Clock()
    first, other = cases[0], next(each for each in cases if each.case.model != cases[0].case.model)
    left = TimeLeft([first, other, cases[1], cases[-1]], clock=clock)
    for case, pace, expected in ((first, 2.0, 2.0 * sum(map(images, (other, cases[1], cases[-1])))),
                                 (other, 3.0, 2.0 * images(cases[1]) + 3.0 * images(cases[-1]))):
        assert (left.seconds() is None) == (case is first)
        left.started(case)
        clock.now += images(case) * pace
        left.ended(Outcome(case.case, Status.OK, {"latency": [1.0]}, "random weights"))
        assert left.seconds() == pytest.approx(expected)


def test_stored_seconds_come_first_and_devices_share_the_work(cases: list[Planned]) -> None:
    left = TimeLeft(cases, lambda key: 10.0, Clock())
    assert left.seconds() == 10.0 * len(cases)
    left.started(cases[0])
    left.started(cases[1])
    assert left.seconds() == 10.0 * len(cases) / 2
    searched = replace(cases[0], case=replace(cases[0].case, evaluation={MAX_BATCH: {"limit": 0}}))
    assert TimeLeft([searched], lambda key: 10.0).seconds() is None
    assert TimeLeft().seconds() is None


def test_the_batches_of_a_running_case_count(cases: list[Planned]) -> None:
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
