"""Baseline files: written whole, found by name, refused when damaged, and replaced only for a reason."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from gate_examples import CODE, ENVIRONMENT, exchange, plan

from cachemark.core.errors import BadBaseline, NothingMeasured
from cachemark.core.result import Environment, Outcome
from cachemark.gate import baselines, incidents
from cachemark.gate.baseline_check import compare
from cachemark.store.db import Store

NEWER = replace(ENVIRONMENT, fingerprint="torch 2.7 / 4 threads")


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
    """The folder with a first baseline."""
    baselines.save(store, measured(store), root, reason="first", days=30)
    return root


def measured(
    store: Store, outcomes: list[Outcome] | None = None, state: str = "finished", environment: Environment = ENVIRONMENT,
    name: str = "demo",
) -> int:
    run = store.begin_run(name, {}, environment, CODE)
    for outcome in plan() if outcomes is None else outcomes:
        store.save(run, outcome)
    if state != "running":
        store.finish_run(run, state)
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


def test_a_missing_file_names_the_nearest_of_its_machine(store: Store, root: Path) -> None:
    baselines.save(store, measured(store), root)
    for name, words in (("ci-cpu/dmeo", r"Did you mean .*demo\.json\?"), ("other-machine/demo", r"\. Known: none \(1 of other machines\)")):
        with pytest.raises(BadBaseline, match=words):
            baselines.load(root / f"{name}.json")


def test_only_a_reason_replaces_what_is_accepted(store: Store, root: Path) -> None:
    run = store.run(measured(store))
    baselines.refuse_present(run, root)
    baselines.save(store, run.id, root)
    with pytest.raises(BadBaseline, match=r"accepted already.*promote"):
        baselines.refuse_present(run, root)
    baselines.refuse_present(run, root, "another")


ACCEPTED = sorted((Path(__file__).parents[2] / "baselines" / "accepted").glob("*/*.json"))


@pytest.mark.parametrize("path", ACCEPTED, ids=lambda path: path.stem)
def test_an_accepted_baseline_passes_against_itself(path: Path) -> None:
    accepted = baselines.load(path)
    comparison = compare(accepted, accepted.outcomes, accepted.environment, plan=accepted.meta["plan"])
    assert (comparison.exit_code, comparison.coverage) == (0, 1.0)


def test_a_place_that_cannot_be_written(store: Store, root: Path) -> None:
    root.parent.mkdir()
    root.write_text("in the way")
    for save, remedy in ((lambda: baselines.save(store, measured(store), root), "Name another folder for baselines."),
                         (lambda: incidents.save(root / "register.json", []), "Name another file with --incidents.")):
        with pytest.raises(BadBaseline, match="cannot be written") as caught:
            save()
        assert caught.value.remedy == remedy


def test_promotion_replaces_and_says_what_and_why(store: Store, accepted: Path) -> None:
    before, run = baselines.load(accepted / "ci-cpu" / "demo.json"), measured(store)
    meta = baselines.load(baselines.promote(store, run, accepted, reason="faster attention")).meta
    assert (meta["run"], meta["reason"], meta["series"]) == (run, "faster attention", 1)
    assert {"digest": before.digest, "reason": "first", "fingerprint": ENVIRONMENT.fingerprint}.items() <= meta["replaces"].items()


def test_an_upgrade_begins_a_new_series(store: Store, accepted: Path) -> None:
    run = measured(store, environment=NEWER)
    with pytest.raises(BadBaseline, match=r"other numerics.*baseline rebase"):
        baselines.promote(store, run, accepted, reason="new torch")
    loaded_baseline = baselines.load(baselines.promote(store, run, accepted, reason="new torch", upgraded=True))
    assert (loaded_baseline.meta["series"], loaded_baseline.meta["replaces"].get("series", 1)) == (2, 1)
    assert [item.series for item in baselines.list_(accepted)] == [2]
    again = baselines.load(baselines.promote(store, measured(store, environment=NEWER), accepted, reason="and faster"))
    assert again.meta["series"] == 2
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
