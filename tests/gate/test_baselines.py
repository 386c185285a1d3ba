"""Baseline files, replaced only for a reason, and anchors: which outcomes reach one, and the warning of reports."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from gate_examples import CODE, ENVIRONMENT, case, exchange, ok, plan
from pydantic import ValidationError

from cachemark.core.errors import BadBaseline, Infrastructure, NothingMeasured
from cachemark.core.result import Environment, Outcome
from cachemark.core.spec import Sampling
from cachemark.gate import baselines, incidents
from cachemark.gate.anchors import FAILED, NOT_MEASURED, PASSED, Anchor, judge, not_reproduced, reached
from cachemark.gate.baseline_check import compare
from cachemark.plans.schema import AnchorTable
from cachemark.store.db import Store

NEWER = replace(ENVIRONMENT, fingerprint="torch 2.7 / 4 threads")
WEIGHTS = "a" * 64 + "/" + "b" * 64
METRIC = "fid_adm_50k"
TABLE: dict[str, Any] = {"metric": METRIC, "expected": 1.78, "tolerance": 0.05, "source": "README"}
ANCHOR = Anchor(**TABLE)
REACHED = {("mar-l", WEIGHTS)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One database for all tests of this file: each begins runs of its own, and making one takes a while."""
    with Store.open(tmp_path_factory.mktemp("store") / "results.db") as opened:
        yield opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "baselines" / "accepted"


@pytest.fixture
def accepted(store: Store, root: Path) -> Path:
    baselines.save(store, measured(store), root, reason="first", days=30)
    return root


def measured(store: Store, environment: Environment = ENVIRONMENT, name: str = "demo") -> int:
    run = store.begin_run(name, {}, environment, CODE)
    for outcome in plan():
        store.save(run, outcome)
    store.finish_run(run, "finished")
    return run


def test_list_says_what_is_wrong_with_a_file(store: Store, root: Path) -> None:
    assert baselines.list_(root) == []
    text = baselines.save(store, measured(store), root, reason="first").read_text()
    (bad := root / "h200" / "bad.json").parent.mkdir()
    data = json.loads(text)
    of_series = {json.dumps({**data, "meta": {**data["meta"], "series": value}}): f"has meta.series = {value!r}"
                 for value in ("2", 0, 1.5, True)}
    for content, problem in {text[:300]: "cannot be read", **of_series}.items():
        bad.write_text(content)
        good, listed = baselines.list_(root)
        assert (good.machine_class, good.name, good.problem, bool(good.saved)) == ("ci-cpu", "demo", "", True)
        assert (listed.machine_class, listed.name, problem in listed.problem) == ("h200", "bad", True)


def test_a_missing_file_names_the_nearest_and_only_a_reason_replaces_one(store: Store, root: Path) -> None:
    run = store.run(measured(store))
    baselines.refuse_present(run, root)
    baselines.save(store, run.id, root)
    with pytest.raises(BadBaseline, match=r"accepted already.*promote"):
        baselines.refuse_present(run, root)
    baselines.refuse_present(run, root, "another")
    baselines.save(store, measured(store), root)
    for name, words in (("ci-cpu/dmeo", r"Did you mean .*demo\.json\?"), ("other-machine/demo", r"\. Known: none \(1 of other machines\)")):
        with pytest.raises(BadBaseline, match=words):
            baselines.load(root / f"{name}.json")


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "baselines/accepted").glob("*/*.json")), ids=lambda path: path.stem)
def test_an_accepted_baseline_passes_against_itself(path: Path) -> None:
    accepted = baselines.load(path)
    comparison = compare(accepted, accepted.outcomes, accepted.environment, plan=accepted.meta["plan"])
    assert (comparison.exit_code, comparison.coverage) == (0, 1.0)


def test_a_place_that_cannot_be_written(store: Store, root: Path) -> None:
    root.parent.mkdir()
    root.write_text("in the way")
    for save, remedy in ((lambda: baselines.save(store, measured(store), root), "Name another folder for baselines."),
                         (lambda: incidents.save(root / "register.json", []), "Name another file with --incidents.")):
        with pytest.raises(Infrastructure, match=f"cannot be written.*{remedy}"):
            save()


def test_promotion_says_what_it_replaces_and_an_upgrade_begins_a_new_series(store: Store, accepted: Path) -> None:
    before, run = baselines.load(accepted / "ci-cpu" / "demo.json"), measured(store)
    meta = baselines.load(baselines.promote(store, run, accepted, reason="faster attention")).meta
    assert (meta["run"], meta["reason"], meta["series"]) == (run, "faster attention", 1)
    assert {"digest": before.digest, "reason": "first", "fingerprint": ENVIRONMENT.fingerprint}.items() <= meta["replaces"].items()
    run = measured(store, environment=NEWER)
    with pytest.raises(BadBaseline, match=r"other numerics.*baseline rebase"):
        baselines.promote(store, run, accepted, reason="new torch")
    loaded_baseline = baselines.load(baselines.promote(store, run, accepted, reason="new torch", upgraded=True))
    assert (loaded_baseline.meta["series"], loaded_baseline.meta["replaces"].get("series", 1)) == (2, 1)
    assert [item.series for item in baselines.list_(accepted)] == [2]
    again = baselines.promote(store, measured(store, environment=NEWER), accepted, reason="and faster")
    assert baselines.load(again).meta["series"] == 2
    with pytest.raises(BadBaseline, match="nothing was upgraded"):  # a rebase would hide a regression
        baselines.promote(store, run, accepted, reason="it is slower now", upgraded=True)


@pytest.mark.parametrize("upgraded", [False, True])
def test_neither_goes_without_a_reason_a_baseline_and_the_same_plan(upgraded: bool, store: Store, accepted: Path, tmp_path: Path) -> None:
    run = measured(store, environment=NEWER if upgraded else ENVIRONMENT)
    with pytest.raises(BadBaseline, match="--reason is required"):
        baselines.promote(store, run, accepted, reason="  ", upgraded=upgraded)
    with pytest.raises(BadBaseline, match="There is no baseline"):
        baselines.promote(store, run, tmp_path / "elsewhere", reason="r", upgraded=upgraded)
    other = measured(store, environment=NEWER if upgraded else ENVIRONMENT, name="another")
    with pytest.raises(BadBaseline, match="is of plan 'demo', run"):
        baselines.promote(store, other, accepted, "demo", reason="r", upgraded=upgraded)
    assert baselines.load(accepted / "ci-cpu" / "demo.json").meta["reason"] == "first"


def test_an_expired_baseline_judges_nothing(store: Store, accepted: Path) -> None:
    loaded_baseline = baselines.load(accepted / "ci-cpu" / "demo.json")
    assert loaded_baseline.meta["expires"] == (datetime.now(UTC) + timedelta(days=30)).date().isoformat()
    assert baselines.list_(accepted)[0].expires == loaded_baseline.meta["expires"]
    baselines.refuse_expired(loaded_baseline)
    baselines.refuse_expired(loaded_baseline, datetime.now(UTC) + timedelta(days=28))
    with pytest.raises(NothingMeasured, match="expired on"):
        baselines.refuse_expired(loaded_baseline, datetime.now(UTC) + timedelta(days=31))
    baselines.refuse_expired(exchange(plan()))
    with pytest.raises(BadBaseline, match=r"meta\.expires = 'soon'"):
        exchange(plan(), expires="soon")


def outcome(fid: float = 1.80, **fields: Any) -> Outcome:
    sampling = Sampling(cfg_scale=3.0, cfg_schedule="linear", steps=256)
    return ok(case("full", **{"model": "mar-l", "weights": WEIGHTS, "sampling": sampling, **fields}), **{METRIC: [fid]})


def test_a_value_is_reached_within_the_tolerance_by_the_published_case() -> None:
    for fid, state in ((1.78, PASSED), (1.8299, PASSED), (1.7301, PASSED), (1.8301, FAILED), (1.7299, FAILED)):
        reached_state, reason = judge(ANCHOR, outcome(fid))
        assert (reached_state, "below it" in reason, "above it" in reason) == (state, fid == 1.7299, fid == 1.8301)
    for fields, words in (
        ({"role": "other_seeds"}, "for the full cache"), ({"codec": "int8", "role": "candidate"}, "in its native codec; this is full int8"),
        ({"weights": "random:0/" + "b" * 64}, "weights are random"), ({"weights": "a" * 64 + "/random:0"}, "weights are random")):
        state, reason = judge(ANCHOR, outcome(**fields))
        assert (state, words in reason) == (NOT_MEASURED, True)
    assert AnchorTable.model_validate({**TABLE, "expected": 2}).expected == 2.0
    for key, value in (("tolerance", 0), ("expected", float("inf")), ("expected", True), ("expected", 10**400), ("source", "")):
        with pytest.raises(ValidationError, match=key):
            AnchorTable.model_validate({**TABLE, key: value})


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
