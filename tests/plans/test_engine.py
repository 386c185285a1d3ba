"""Engines that a plan leaves open: what they become, and beside which full cache."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cachemark.core import registry
from cachemark.core.errors import BadBudget, UnknownName
from cachemark.metrics.base import ImageMetric
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.plans.schema import Plan
from cachemark.plugins import loading as plugins
from cachemark.roofline.bill import SAVES_NOTHING
from cachemark.trial.child.bench import Bench
from support import stages
from support.measuring import probe
from support.stages import forgetting


def planned(engine: str, device: str, decide: str = "profile", model: str = "tiny-var") -> list[Prepared]:
    methods = ["streaming", {"name": "ams_kv", "demanding": [1], "decide": decide}][: 2 if model == "tiny-var" else 1]
    block = {"model": model, "methods": methods, "budgets": ["1/2"], "engine": engine, "batch": 2}
    plan = Plan.model_validate({"name": "p", "fidelity": {"samples": 2}, "cells": [block]})
    return [Prepared.of(case) for case in expand(plan, device)]


def test_it_is_eager_on_a_cpu_and_graph_on_a_gpu_under_the_same_keys() -> None:
    for device, engine in (("cpu", "eager"), ("cuda", "graph")):
        auto, named = planned("auto", device), planned(engine, device)
        assert [p.case.key for p in auto] == [p.case.key for p in named]
        assert all(("captures CUDA graphs" in p.engine_reason) == (device == "cpu") for p in auto)
        assert not any(p.engine_reason or p.unsupported_reason for p in named)


def test_a_method_bound_to_the_host_is_eager_beside_a_full_cache_of_its_own() -> None:
    auto = planned("auto", "cuda", decide="online")
    (online,) = (p for p in auto if p.case.method == "ams_kv")
    (streaming,) = (p for p in auto if p.case.method == "streaming")
    assert (online.case.engine, streaming.case.engine) == ("eager", "graph")
    assert "decides on the host" in online.engine_reason
    assert not online.unsupported_reason
    for candidate in (online, streaming):
        roles = [p.case.role for p in auto if p.case.cell == candidate.case.cell and p.case.method == "full"]
        assert roles == ["baseline", "other_seeds", "other_batch"]


def test_the_row_says_why_it_is_eager(folder: Path) -> None:
    with forgetting():
        plugins.load(folder / "dot.py")
        full = planned("auto", "cpu", model="dot")[0]
        outcome, _ = probe(full, Bench.load(full))
    assert outcome.ok
    assert outcome.facts.engine_reason == full.engine_reason != ""


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
    *((model, {"name": method}, budget, reason) for model, method in (("tiny-llamagen", "window"), ("tiny-var", "streaming"))
      for budget, reason in (("1", SAVES_NOTHING), ("1/2", ""))),
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
    facts = {label: outcome.facts for label, outcome in stage.outcomes().items()}
    for label, reason in (("streaming 1", SAVES_NOTHING), ("full", "")):
        assert (SAVES_NOTHING in facts[label].footnotes, facts[label].idle or "") == (bool(reason), reason)


def test_the_name_of_a_method_is_a_budget_where_that_method_has_sizes(write: Callable[[str], Plan]) -> None:
    for model, budget, words in (
        ("tiny-llamagen", '"ams_kv"', "next-scale models, and this one is a next-token model"),
        ("tiny-llamagen", '"lazymar"', "it has sizes on masked models"),
        ("tiny-llamagen", '{ name = "ams_kv", theta = -0.02 }', "or on masked and next-scale models the name of a method"),
        ("tiny-var", '"window"', "it has no sizes of its own"), ("tiny-var", '"window"', "ams_kv, hack, hackpp, heatkv, scalekv"),
        ("tiny-var", '"amskv"', "Did you mean 'ams_kv'?"), ("tiny-llamagen", '"amskv"', "Write a share"),
    ):
        plan = write(f'name = "p"\n[[cells]]\nmodel = "{model}"\nmethods = ["random"]\nbudgets = [{budget}]\n')
        with pytest.raises(BadBudget) as caught:
            expand(plan)
        assert str(caught.value).startswith(f"{plan.place('cells', 0, 'budgets')}: ")
        assert plan.place("cells", 0, "budgets").endswith(":5")
        assert words in str(caught.value)


    for model, method, says in (
        ("tiny-llamagen", '{ name = "fewer_steps", steps = 4 }', "fewer_steps does not run on next-token models. It runs on: masked."),
        ("tiny-mar", '{ name = "window", B = 100000 }', "window does not run on masked models. It runs on: next-token, next-scale."),
    ):
        text = f'name = "p"\non_unsupported = "POLICY"\n[[cells]]\nmodel = "{model}"\nmethods = [{method}]\n'
        with pytest.raises(BadBudget, match=says):
            expand(write(text.replace("POLICY", "error")))
        assert [p.unsupported_reason for p in expand(write(text.replace("POLICY", "unsupported"))) if p.case.role == "candidate"] == [says]


def test_a_metric_that_is_of_no_plug_in_says_where_its_name_belongs(
    write: Callable[[str], Plan], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(registry.metrics._entries, "contrast", ImageMetric)
    for name, words in {
        "psnr": "Leave it out of metrics.", "color_consistency": "Leave it out", "latency": "Leave it out",
        "fid_scene_2k": "Add a table [quality]", "kid": "Add a table [quality]", "dpg": '{ name = "dpg", weights = "FOLDER" }',
        "clip_score": '{ name = "clip_score", weights = "FOLDER" }', "geneval_counting": 'detector = "FOLDER", clip = "FOLDER"',
        "contrst": "Did you mean 'contrast'?", "nothing": "A file that brings one is given with --plugin FILE.",
    }.items():
        plan = write(f'name = "p"\nmetrics = ["{name}"]\n[[cells]]\nmodel = "tiny-llamagen"\nmethods = ["window"]\n')
        with pytest.raises(UnknownName) as caught:
            expand(plan)
        assert str(caught.value).startswith(f"{plan.place('metrics')}: ")
        assert plan.place("metrics").endswith(":2")
        assert words in str(caught.value)
