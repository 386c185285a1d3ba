"""The baseline ladder: full caches by rung, and the speedup of a method over each."""

from __future__ import annotations

from typing import Any

import pytest

from cachemark.core.facts import Facts
from cachemark.core.limits import Limit
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling
from studies import ladder


def limit(floor: float) -> dict[str, Any]:
    return Limit(floor, floor, 1, 1, 1.0, 1.0, {"attention": floor}).to_json()


def ran(seconds: float, engine: str = "eager", floor: float | None = None, facts: dict[str, Any] | None = None, **changes: Any) -> Outcome:
    held: dict[str, Any] = {"model": "llamagen-xl", "weights": "random:0/random:0", "grid": (24, 24), "conditions": "classes",
                            "sampling": Sampling(cfg_scale=1.75), "method": "full", "role": "baseline", "batch": 256, "engine": engine}
    told = Facts.from_json({**({"limit": limit(floor)} if floor else {}), **(facts or {})})
    return Outcome(Case(**{**held, **changes}), Status.OK, {"latency": [seconds] * 5}, "random weights: not measured", facts=told)


def candidate(seconds: float, engine: str = "eager", **more: Any) -> Outcome:
    return ran(seconds, engine, **{"method": "linear", "budget": "1/4", "role": "candidate", "parameters": {"B": 144}, **more})


def one(*outcomes: Outcome) -> Any:
    (found,) = ladder.ladders(outcomes)
    return found


def steps(found: Any) -> dict[tuple[str, str], Any]:
    return {(step.name, step.engine): step for step in found.steps}


def test_a_method_is_set_against_every_rung_and_stands_on_its_highest() -> None:
    single_ladder = one(ran(60, "reference", 8.0), ran(20, floor=8.0), ran(10, "graph", 8.0), candidate(12, floor=4.0),
                candidate(5, "graph", floor=4.0))
    held = steps(single_ladder)
    assert ("linear 1/4", "eager") not in held
    best = held["linear 1/4", "graph"]
    assert best.over == {"paper-faithful": 12.0, "flash on live keys": 4.0, "graph": 2.0}
    assert best.allowed == 2.0
    assert held["full", "graph"].over == {"paper-faithful": 6.0, "flash on live keys": 2.0, "graph": 1.0}
    assert held["full", "reference"].allowed is None
    assert single_ladder.missing == {}


@pytest.mark.parametrize("name", ["ladder", "ladder-gpu"])
def test_the_plans_have_a_full_cache_on_both_rungs_for_every_candidate(name: str) -> None:
    from cachemark.plans import schema as plans
    from cachemark.plans.expand import expand

    found = [planned.case for planned in expand(plans.load(name))]
    rungs = {(case.model, case.batch, case.sampling, case.engine) for case in found if case.role == "baseline"}
    for case in found:
        assert (case.model, case.batch, case.sampling, "reference") in rungs
        assert case.role != "candidate" or case.engine == "eager"
    assert {model for model, *_ in rungs} >= ({"llamagen-xl", "var-d30", "mar-l"} if name == "ladder-gpu" else {"llamagen-b", "tiny-mar"})
