"""Names in a plan that stand in the wrong place: what is said of them, and on which line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cachemark.core import registry
from cachemark.core.errors import BadBudget, UnknownName
from cachemark.metrics.base import ImageMetric
from cachemark.plans.expand import expand
from cachemark.plans.schema import Plan

Write = Callable[[str], Plan]


def test_the_name_of_a_method_is_a_budget_where_that_method_has_sizes(write: Write) -> None:
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


@pytest.mark.parametrize(("model", "method", "says"), [
    ("tiny-llamagen", '{ name = "fewer_steps", steps = 4 }', "fewer_steps does not run on next-token models. It runs on: masked."),
    ("tiny-mar", '{ name = "window", B = 100000 }', "window does not run on masked models. It runs on: next-token, next-scale."),
])  # fmt: skip
def test_sizes_of_a_method_for_other_models_say_where_it_runs(model: str, method: str, says: str, write: Write) -> None:
    text = f'name = "p"\non_unsupported = "POLICY"\n[[cells]]\nmodel = "{model}"\nmethods = [{method}]\n'
    with pytest.raises(BadBudget, match=says):
        expand(write(text.replace("POLICY", "error")))
    assert [p.unsupported_reason for p in expand(write(text.replace("POLICY", "unsupported"))) if p.case.role == "candidate"] == [says]


def test_a_metric_that_is_of_no_plug_in_says_where_its_name_belongs(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
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
