"""A method that does nothing on a model says so, before it runs and beside its values."""

from __future__ import annotations

import json
from pathlib import Path

from cachemark.plans.expand import expand
from cachemark.plans.schema import Plan
from cachemark.roofline.bill import SAVES_NOTHING
from support import stages

ALONE = {"condition_cache": False, "encoder_cache": False, "head_cache": False}
CASES = (  # model, method, budget, the beginning of what is said
    ("tiny-mar", {"name": "lazymar", **ALONE}, "0.97", "No pass reuses results of an earlier one"),
    ("tiny-mar", {"name": "lazymar", **ALONE, "layer": 2}, "0.97", ""),
    ("tiny-mar", {"name": "lazymar", **ALONE, "head_cache": True}, "0.97", ""),
    ("tiny-mar", {"name": "lazymar", **ALONE, "token_cache": False}, "1", SAVES_NOTHING), ("tiny-mar", {"name": "lazymar"}, "0.97", ""),
    ("tiny-mar", {"name": "recap"}, "1", "Every step is full"), ("tiny-mar", {"name": "recap"}, "0.8", ""),
    ("tiny-mar", {"name": "halton"}, "1", ""), ("tiny-mar", {"name": "halton", "order": "sample"}, "1", SAVES_NOTHING),
    ("tiny-mar", {"name": "disa", "most": 1.0, "least": 1.0}, "1", SAVES_NOTHING),
    ("tiny-mar", {"name": "gtr", "stages": 1, "rate": "cosine", "most": 1.0, "least": 1.0}, "1", SAVES_NOTHING),
    ("tiny-llamagen", {"name": "window"}, "1", SAVES_NOTHING), ("tiny-llamagen", {"name": "window"}, "1/2", ""),
    ("tiny-var", {"name": "streaming"}, "1", SAVES_NOTHING), ("tiny-var", {"name": "streaming"}, "1/2", ""),
)  # fmt: skip


def test_a_method_that_does_nothing_is_known_before_it_runs() -> None:
    for model, method, budget, reason in CASES:
        plan = Plan.model_validate({"name": "x", "cells": [{"model": model, "methods": [method], "budgets": [budget]}]})
        reasons = {planned.case.role: planned.idle_reason for planned in expand(plan)}
        candidate = reasons.pop("candidate")
        assert (candidate.startswith(reason) if reason else not candidate), (model, method)
        assert not any(reasons.values())


def test_the_price_the_log_and_the_row_state_it(tmp_path: Path) -> None:
    stage = stages.stage(tmp_path / "stage", '"streaming"')
    stage.plan.write_text(stage.plan.read_text().replace('budgets = ["1/2"]', 'budgets = ["1"]'))
    line = f"dot streaming 1 has no effect. {SAVES_NOTHING}"
    assert line in stage.call("price").output
    assert json.loads(stage.call("price", "--json").stdout)["idle"][0] == {"case": "dot streaming 1", "reason": SAVES_NOTHING}
    assert line in stage.run().stderr
    footnoted = {label: SAVES_NOTHING in outcome.facts.footnotes for label, outcome in stage.outcomes().items()}
    assert (footnoted["streaming 1"], footnoted["full"]) == (True, False)
    idle = {label: outcome.facts.idle or "" for label, outcome in stage.outcomes().items()}
    assert (idle["streaming 1"], idle["full"]) == (SAVES_NOTHING, "")
