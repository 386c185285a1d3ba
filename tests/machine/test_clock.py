"""The host's clock: which moments it keeps, and from when it counts. How long anything takes is not tested."""

from __future__ import annotations

import itertools

import pytest

from cachemark.machine import timer as clock
from cachemark.machine.timer import HostClock


@pytest.fixture(autouse=True)
def _ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances by one second whenever it is read."""
    ticks = itertools.count(start=100)
    monkeypatch.setattr(clock.time, "perf_counter_ns", lambda: next(ticks) * 10**9)


def test_only_watched_tokens_are_kept_and_counted_from_the_start() -> None:
    host = clock.clock("cpu", [1, 3])
    assert isinstance(host, HostClock)
    host.start()
    for index in range(4):
        host.mark(index)  # the clock is read for watched tokens alone
    assert host.stop() == 3.0
    assert host.marks() == {1: 1.0, 3: 2.0}


def test_a_second_start_forgets_the_first() -> None:
    host = HostClock([0, 1])
    host.start()
    host.mark(1)
    host.start()
    host.mark(0)
    assert host.marks() == {0: 1.0}
