"""A small plan as a run would measure it, to change one value of and judge again."""

import dataclasses
from typing import Any

from cachemark.core.result import Environment, Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.store.exchange import Exchange, dump, load

ENVIRONMENT = Environment("Xeon", "ci-cpu", "torch 2.6 / 4 threads", {})
CODE = {"commit": "abc1234", "dirty": False, "hash": "f00", "version": "0.1.0"}
SAMPLES = {"latency": [1.0, 1.1, 1.2], "tokens_per_s_last": [50.0, 51.0, 52.0], "kv_logical": [1024.0], "kv_allocated": [2048.0],
           "peak_memory": [5000.0], "kl": [0.1, 0.2, 0.3], "psnr": [30.0, 31.0, 32.0], "color_consistency": [0.75, 1.0]}


def case(method: str, **fields: Any) -> Case:
    budget, role = ("1", "baseline") if method == "full" else ("1/4", "candidate")
    base: dict[str, Any] = {"model": "tiny", "weights": "random:0", "grid": (8, 8), "conditions": "labels", "sampling": Sampling(),
                            "method": method, "budget": budget, "role": role}
    return Case(**{**base, **fields})


def ok(of: Case, **samples: list[float]) -> Outcome:
    """An ok outcome of the case with ``SAMPLES``, some of them given."""
    return Outcome(of, Status.OK, {**SAMPLES, **samples}, output_hash="cafe")


def plan() -> list[Outcome]:
    full = ok(case("full"), latency=[2.0, 2.0, 2.0], tokens_per_s_last=[25.0, 25.0, 25.0])
    return [full, ok(case("linear")), ok(case("h2o")), Outcome(case("rkv"), Status.OOM, log="out of memory")]


def exchange(outcomes: list[Outcome], environment: Environment = ENVIRONMENT, **meta: Any) -> Exchange:
    return load(dump(outcomes, environment, CODE, **meta), "accepted/demo.json")


def changed(outcomes: list[Outcome], method: str, **fields: Any) -> list[Outcome]:
    """The outcomes with ``fields`` of one method's outcome replaced; samples given are merged into its own."""
    def edit(outcome: Outcome) -> Outcome:
        samples = {**outcome.samples, **fields.get("samples", {})} if fields.get("samples") != {} else {}
        return dataclasses.replace(outcome, **{**fields, "samples": samples})

    return [edit(o) if o.case.method == method else o for o in outcomes]
