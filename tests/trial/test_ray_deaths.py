"""Workers of a Ray cluster that die, with a stand-in for Ray: their cases run again in the same run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.models.protocol import Request
from cachemark.plans.expand import Planned
from cachemark.trial.executors.ray import REDOS, Ray
from cachemark.trial.request import TrialRequest
from cachemark.trial.supervisor import Finished


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class Cluster:
    """One processor. A task of a method dies as often as ``deaths`` allows, by ``error``; else its cases end well."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, deaths: int, error: type[RayError] = RayError) -> None:
        self.deaths, self.error, self.ran = deaths, error, list[str]()

    def cluster_resources(self) -> dict[str, int]:
        return {"CPU": 1}

    def remote(self, **_: Any) -> Any:
        return lambda function: SimpleNamespace(remote=lambda parts, code: _Handle(parts))

    def wait(self, handles: list[_Handle], num_returns: int) -> tuple[list[_Handle], list[_Handle]]:
        return handles[:1], handles[1:]

    def get(self, handle: _Handle) -> tuple[str, str, list[Finished]]:
        ((group, _),) = handle.parts
        self.ran += [planned.case.method for planned in group]
        if any(planned.case.method == "dies" for planned in group) and self.deaths:
            self.deaths -= 1
            raise self.error("the worker is gone")
        return "", "node", [Finished(Outcome(planned.case, Status.OK, {"latency": [1.0]}, "random"), {}) for planned in group]


class _Handle:
    def __init__(self, parts: Any) -> None:
        self.parts = parts


def planned(name: str) -> Planned:
    return Planned(Case("m", "random:0", (4, 4), "c", Sampling(), name), Request("cpu"))


@pytest.mark.parametrize(("deaths", "error", "ended", "runs"), [
    (0, RayError, Status.OK, 1),
    (1, RayError, Status.OK, 2),
    (99, RayError, Status.ERROR, 1 + REDOS),
    (1, RayTaskError, Status.ERROR, 1),  # raised by the task: it would be raised again
])
def test_the_cases_of_a_worker_that_died_run_again(deaths: int, error: type[RayError], ended: Status, runs: int) -> None:
    cluster = Cluster(deaths, error)
    groups = [[planned("a")], [planned("dies"), planned("b")], [planned("c")]]
    finished = list(Ray(cluster).run(groups, TrialRequest(1.0, 1), lambda case: None))
    assert sorted(each.outcome.case.method for each in finished) == ["a", "b", "c", "dies"], "each case ends exactly once"
    assert {each.outcome.case.method: each.outcome.status for each in finished} == {
        "a": Status.OK, "b": ended, "c": Status.OK, "dies": ended}
    assert cluster.ran.count("dies") == runs


def test_results_of_a_worker_with_other_numerics_are_refused() -> None:
    (finished,) = Ray(Cluster(0), _kind="first").run([[planned("a")]], TrialRequest(1.0, 1), lambda case: None)
    assert (finished.outcome.status, "worker of another kind (numerics" in finished.outcome.log) == (Status.ERROR, True)
