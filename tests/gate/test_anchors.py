"""Anchors: which outcomes reach one, and the warning of reports."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
from gate_examples import CODE, ENVIRONMENT, case, changed, exchange, ok
from pydantic import ValidationError

from cachemark.analysis.baseline_comparison import changes
from cachemark.core.errors import UnknownName
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Sampling
from cachemark.gate import anchors
from cachemark.gate.anchors import FAILED, NOT_MEASURED, PASSED, Anchor, judge, not_reproduced, reached
from cachemark.gate.baseline_check import compare
from cachemark.plans.schema import SHIPPED, AnchorTable
from cachemark.store.db import Store

WEIGHTS = "a" * 64 + "/" + "b" * 64
METRIC = "fid_adm_50k"
TABLE: dict[str, Any] = {"metric": METRIC, "expected": 1.78, "tolerance": 0.05, "source": "README"}
ANCHOR = Anchor(**TABLE)
SAMPLING = Sampling(cfg_scale=3.0, cfg_schedule="linear", steps=256)


def outcome(fid: float = 1.80, **fields: Any) -> Outcome:
    of = case("full", **{"model": "mar-l", "weights": WEIGHTS, "sampling": SAMPLING, **fields})
    return ok(of, **{METRIC: [fid]})


# ------------------------------------------------------------------------------------------------ judging

@pytest.mark.parametrize(("fid", "state"), [(1.78, PASSED), (1.8299, PASSED), (1.7301, PASSED), (1.8301, FAILED), (1.7299, FAILED)])
def test_a_value_is_reached_within_the_tolerance_on_either_side(fid: float, state: str) -> None:
    found, reason = judge(ANCHOR, outcome(fid))
    assert found == state
    assert f"{METRIC} = {fid:.4g}, published 1.78 ± 0.05" in reason
    assert ("below it" in reason, "above it" in reason) == (fid == 1.7299, fid == 1.8301)


@pytest.mark.parametrize(("fields", "words"), [
    ({"role": "other_seeds"}, "for the full cache"),
    ({"role": "other_batch"}, "for the full cache"),
    ({"codec": "int8", "role": "candidate"}, "in its native codec; this is full int8"),
    ({"weights": "random:0/" + "b" * 64}, "weights are random"),
    ({"weights": "a" * 64 + "/random:0"}, "weights are random"),
])  # fmt: skip
def test_what_is_not_the_published_case_is_not_measured(fields: dict[str, Any], words: str) -> None:
    state, reason = judge(ANCHOR, outcome(**fields))
    assert state == NOT_MEASURED
    assert words in reason


# ------------------------------------------------------------------------------------------------ the warning of reports

REACHED = {("mar-l", WEIGHTS)}


def test_only_the_very_weights_are_anchored() -> None:
    assert not_reproduced("mar-l", WEIGHTS, REACHED) == ""
    other = not_reproduced("mar-l", "c" * 64 + "/" + "b" * 64, REACHED)
    assert "its anchor was reached with other weights" in other
    assert other.endswith("To show it: cachemark run anchor-mar-l")
    assert "has not reproduced" in not_reproduced("mar-l", WEIGHTS, ())
    assert "has not reproduced" in not_reproduced("mar-b", WEIGHTS, REACHED)
    assert "cachemark run" not in not_reproduced("mar-b", WEIGHTS, ())  # no plan of that name is shipped
    assert "its weights are random" in not_reproduced("mar-l", "random:0/random:0", REACHED)


def test_a_stored_run_of_a_plan_with_an_anchor_reaches_it(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        for plan, fid in (({"anchor": TABLE}, 2.5), ({}, 1.79)):
            store.save(store.begin_run("p", plan, ENVIRONMENT, CODE), outcome(fid))
        assert reached(store) == set()
        store.save(store.begin_run("p", {"anchor": TABLE}, ENVIRONMENT, CODE), outcome(1.79))
        assert reached(store) == REACHED


# ------------------------------------------------------------------------------------------------ the shipped plans

def plans() -> dict[str, dict[str, Any]]:
    return {f.name: tomllib.loads(f.read_text(encoding="utf-8")) for f in SHIPPED.glob("*/anchor-*.toml")}


def test_shipped_anchors_are_of_the_full_cache_on_fifty_thousand_images() -> None:
    found = plans()
    assert {f"anchor-{model}.toml" for model in anchors.shipped()} == set(found) != set()
    for name, plan in found.items():
        (cells,) = plan["cells"]
        assert f"{plan['name']}.toml" == name == f"anchor-{cells['model']}.toml"
        assert (cells["methods"], cells["budgets"], cells["sampling"]) == (["full"], ["1"], "paper")
        assert (plan["quality"]["seeds"], plan["quality"]["samples"], plan["quality"]["preset"]) == ("s50k", 50_000, "adm")
        assert plan["anchor"]["metric"] == METRIC
        assert cells["weights"]
        assert cells["decoder_weights"]


@pytest.mark.parametrize(("change", "words"), [
    ({"tolerance": 0}, "tolerance"), ({"expected": float("inf")}, "expected"), ({"expected": "1.78"}, "expected"),
    ({"expected": True}, "expected"), ({"source": ""}, "source"), ({"metric": 3}, "metric"), ({"expcted": 1.0}, "expcted"),
    ({"expected": 10**400}, "expected"),
])  # fmt: skip
def test_a_table_that_is_no_anchor_is_refused(change: dict[str, Any], words: str) -> None:
    assert AnchorTable.model_validate({**TABLE, "expected": 2}).expected == 2.0
    with pytest.raises(ValidationError, match=words):
        AnchorTable.model_validate({**TABLE, **change})


# -- figures of a whole set of images on their way through the house: stored, exchanged, judged, --
FIGURES = {"fid_scene_2k": [12.25], "kid_scene_2k": [-0.0001234567890123], "isc_scene_2k": [9.5], "precision_scene_2k": [0.875],
           "recall_adm_50k": [0.5]}  # fmt: skip


def plan() -> list[Outcome]:
    return [ok(case("full"), **FIGURES), ok(case("linear"), **FIGURES)]


def test_the_gate_names_them_and_leaves_them_to_a_paired_test() -> None:
    worse = changed(plan(), "linear", samples={"fid_scene_2k": [99.0]})
    comparison = compare(exchange(plan()), worse, ENVIRONMENT)
    rows = {row.metric: row for row in comparison.rows if row.label.startswith("tiny linear")}
    assert FIGURES.keys() <= rows.keys()
    assert {rows[name].verdict for name in FIGURES} == {"not_compared"}
    assert "needs a paired test" in rows["fid_scene_2k"].reason
    assert comparison.exit_code == 0
    without = [dataclasses.replace(o, samples={n: v for n, v in o.samples.items() if n not in FIGURES}) for o in plan()]
    assert {r.verdict for r in compare(exchange(plan()), without, ENVIRONMENT).rows if r.metric in FIGURES} == {"missing"}
    assert {r.verdict for r in compare(exchange(without), plan(), ENVIRONMENT).rows if r.metric in FIGURES} == {"new"}
    titles = {change.entry.metric: change.title for change in changes(comparison)}
    assert titles["fid_scene_2k"] == "FID, scene, 2k images"
    assert titles["recall_adm_50k"] == "Recall, adm, 50k images"


def test_a_figure_of_a_set_is_a_judgement() -> None:
    Outcome(case("linear"), Status.OK, {"latency": [1.0], "fid_scene_2k": [12.0]})
    with pytest.raises(ValueError, match="needs samples and a judgement"):
        Outcome(case("linear"), Status.OK, {"latency": [1.0]})
    with pytest.raises(UnknownName, match="Did you mean 'fid_scene_2k'"):
        Outcome(case("linear"), Status.OK, {"latency": [1.0], "fid_scene_2000": [12.0]})
