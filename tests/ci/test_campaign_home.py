"""What is made of a campaign at home: one run of the newest outcomes, and the table of targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cachemark.core.limits import Limit
from cachemark.core.result import Environment, Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.plans.expand import expand
from cachemark.plans.schema import load
from cachemark.store.db import Store
from campaign import home

HERE = Environment("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3", "f" * 16, {"torch": "2.11", "driver": "580"})
CODE = {"commit": "", "dirty": None, "hash": "c0de", "version": "0"}
RANDOM = "random weights: not measured"


def limit(floor: float) -> dict[str, Any]:
    return Limit(floor, floor, 10**12, 1, 3e12, 1.0, {"attention": floor}).to_json()


def ran(seconds: float, floor: float = 1.0, kv: float = 100.0, **changes: Any) -> Outcome:
    fields: dict[str, Any] = {"model": "llamagen-xl", "weights": "random:0/random:0", "grid": (24, 24), "conditions": "classes",
                            "sampling": Sampling(cfg_scale=1.75), "method": "full", "role": "baseline", "batch": 256, "engine": "graph"}
    samples = {"latency": [seconds + 1] * 3, "latency_tokens": [seconds] * 3, "kv_allocated": [kv]}
    case = Case(**{**fields, **changes})
    return Outcome(case, Status.OK, samples, RANDOM, facts={"limit": limit(floor)}, result_key=case.key)


def linear(seconds: float, floor: float) -> Outcome:
    return ran(seconds, floor, method="linear", budget="1/6", role="candidate", parameters={"B": 96})


def row(outcomes: list[Outcome], method: str, what: str, batch: int = 256) -> list[str]:
    (target,) = (t for t in home.TARGETS if (t.batch, t.method, t.what, t.model) == (batch, method, what, "llamagen-xl"))
    return [cell.strip() for cell in home._line(target, outcomes, HERE.device).split("|")[1:-1]]


def test_a_target_stands_beside_what_was_measured_the_bound_and_what_is_published() -> None:
    result = row([ran(8.0, 4.0), linear(6.0, 2.0)], "full", "images/s")
    assert result[:6] == ["llamagen-xl, 256", "full 1", "images/s", "≥ 25", "32", "64 images/s"]
    assert result[6] == "0.772 of 26.7 images/s, LineAR, Table 4, NVIDIA A800 80 GB"


def test_the_bandwidth_is_that_of_the_recorded_engine() -> None:
    eager, graph = (ran(seconds, batch=1, engine=engine) for seconds, engine in ((2.0, "eager"), (0.5, "graph")))
    assert row([eager, graph], "full", "share of the bandwidth", 1)[4] == "0.667", "10^12 bytes of 3·10^12 a second in half a second"
    assert home._recorded([eager, graph]).split("|")[5].strip() == "4×"
    assert home._recorded([eager]).split("|")[5].strip() == "not in this campaign"


def test_every_target_is_a_case_of_the_campaign() -> None:
    planned = expand(load(str(home.__file__).replace("home.py", "campaign.toml")), "cuda")
    outcomes = [Outcome(p.case, Status.NOT_REACHED, log="x") for p in planned]
    for target in home.TARGETS:
        assert home.case_of(target, outcomes) is not None, (target.model, target.method, target.budget)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store.sqlite")


def test_one_run_holds_the_newest_of_every_case(store: Store) -> None:
    eager = ran(9.0, engine="eager")
    nights = [[ran(8.0), Outcome(eager.case, Status.NOT_REACHED, log="late"), Outcome(linear(1, 1).case, Status.OOM, log="none is left")],
              [eager, Outcome(ran(8.0).case, Status.NOT_REACHED, log="late")]]
    for outcomes in nights:
        with store.new_run(home.PLAN, {"name": home.PLAN}, HERE, CODE) as run:
            for outcome in outcomes:
                store.save(run, outcome)
    result = {(o.case.engine, o.case.method): o for o in store.outcomes(home.gathered(store))}
    assert {key: str(o.status) for key, o in result.items()} == {
        ("graph", "full"): "ok", ("eager", "full"): "ok", ("graph", "linear"): "oom"}
    assert result["graph", "full"].median("latency_tokens") == 8.0
    assert store.run().state == "finished"
