"""Anchors: which outcomes reach one, and the warning of reports."""

from pathlib import Path
from typing import Any

import pytest
from gate_examples import CODE, ENVIRONMENT, case, ok
from pydantic import ValidationError

from cachemark.core.result import Outcome
from cachemark.core.spec import Sampling
from cachemark.gate.anchors import FAILED, NOT_MEASURED, PASSED, Anchor, judge, not_reproduced, reached
from cachemark.plans.schema import AnchorTable
from cachemark.store.db import Store

WEIGHTS = "a" * 64 + "/" + "b" * 64
METRIC = "fid_adm_50k"
TABLE: dict[str, Any] = {"metric": METRIC, "expected": 1.78, "tolerance": 0.05, "source": "README"}
ANCHOR = Anchor(**TABLE)
SAMPLING = Sampling(cfg_scale=3.0, cfg_schedule="linear", steps=256)


def outcome(fid: float = 1.80, **fields: Any) -> Outcome:
    of = case("full", **{"model": "mar-l", "weights": WEIGHTS, "sampling": SAMPLING, **fields})
    return ok(of, **{METRIC: [fid]})


@pytest.mark.parametrize(("fid", "state"), [(1.78, PASSED), (1.8299, PASSED), (1.7301, PASSED), (1.8301, FAILED), (1.7299, FAILED)])
def test_a_value_is_reached_within_the_tolerance_on_either_side(fid: float, state: str) -> None:
    reached_state, reason = judge(ANCHOR, outcome(fid))
    assert reached_state == state
    assert ("below it" in reason, "above it" in reason) == (fid == 1.7299, fid == 1.8301)


@pytest.mark.parametrize(("fields", "words"), [
    ({"role": "other_seeds"}, "for the full cache"), ({"codec": "int8", "role": "candidate"}, "in its native codec; this is full int8"),
    ({"weights": "random:0/" + "b" * 64}, "weights are random"), ({"weights": "a" * 64 + "/random:0"}, "weights are random"),
])
def test_what_is_not_the_published_case_is_not_measured(fields: dict[str, Any], words: str) -> None:
    state, reason = judge(ANCHOR, outcome(**fields))
    assert state == NOT_MEASURED
    assert words in reason


REACHED = {("mar-l", WEIGHTS)}


def test_only_the_very_weights_of_a_run_with_an_anchor_are_anchored(tmp_path: Path) -> None:
    assert not_reproduced("mar-l", WEIGHTS, REACHED) == ""
    assert not_reproduced("pytest-benchmark", "none", ()) == ""
    assert not_reproduced("mar-l", "c" * 64 + "/" + "b" * 64, REACHED).endswith("To show it: cachemark run anchor-mar-l --device cuda")
    assert "has not reproduced" in not_reproduced("mar-l", WEIGHTS, ())
    assert "cachemark run" not in not_reproduced("mar-b", WEIGHTS, REACHED), "no plan of that name is shipped"
    assert "its weights are random" in not_reproduced("mar-l", "random:0/random:0", REACHED)
    with Store.open(tmp_path / "s.sqlite") as store:
        for plan, fid in (({"anchor": TABLE}, 2.5), ({}, 1.79)):
            store.save(store.begin_run("p", plan, ENVIRONMENT, CODE), outcome(fid))
        assert reached(store) == set()
        store.save(store.begin_run("p", {"anchor": TABLE}, ENVIRONMENT, CODE), outcome(1.79))
        assert reached(store) == REACHED


def test_a_table_that_is_no_anchor_is_refused() -> None:
    assert AnchorTable.model_validate({**TABLE, "expected": 2}).expected == 2.0
    for key, value in (("tolerance", 0), ("expected", float("inf")), ("expected", True), ("expected", 10**400), ("source", "")):
        with pytest.raises(ValidationError, match=key):
            AnchorTable.model_validate({**TABLE, key: value})
