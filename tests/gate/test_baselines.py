"""Baseline files: written whole, found by name, refused when damaged."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from gate_examples import CODE, ENVIRONMENT, case, ok, plan

from cachemark.core.errors import BadBaseline, BadStore, NothingMeasured
from cachemark.core.result import Outcome
from cachemark.gate import baselines, incidents
from cachemark.gate.baseline_check import compare
from cachemark.store.db import Store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "baselines" / "accepted"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One database for all tests of this file: each begins runs of its own, and making one takes a while."""
    with Store.open(tmp_path_factory.mktemp("store") / "results.db") as opened:
        yield opened


@pytest.fixture
def store(shared: Store) -> Store:
    return shared


def measured(store: Store, outcomes: list[Outcome] | None = None, state: str = "finished") -> int:
    run = store.begin_run("demo", {}, ENVIRONMENT, CODE)
    for outcome in plan() if outcomes is None else outcomes:
        store.save(run, outcome)
    if state != "running":
        store.finish_run(run, state)
    return run


def test_saved_run_passes_against_itself(store: Store, root: Path) -> None:
    run = measured(store)
    path = baselines.save(store, run, root, reason="first")
    assert path == root / "ci-cpu" / "demo.json"
    loaded = baselines.load(path)
    assert loaded.meta["plan"] == loaded.meta["name"] == "demo"
    assert (loaded.meta["run"], loaded.meta["reason"]) == (run, "first")
    assert compare(loaded, store.outcomes(run), ENVIRONMENT, plan="demo").exit_code == 0
    assert [p.name for p in path.parent.iterdir()] == ["demo.json"], "no partial file stays behind"


def test_saving_is_noted_in_the_store(store: Store, root: Path) -> None:
    path = baselines.save(store, measured(store), root, "named")
    assert path.name == "named.json"
    noted = store.counts()["baseline"]
    assert noted >= 1
    store.note_baseline(baselines.load(path).digest, name="named", plan="demo", machine_class="ci-cpu")
    assert store.counts()["baseline"] == noted, "the digest of the file is the one in the store"


def test_none_is_the_newest_run_and_a_baseline_is_replaced(store: Store, root: Path) -> None:
    first, second = measured(store), measured(store, plan()[:2])
    baselines.save(store, first, root)
    path = baselines.save(store, None, root)
    assert baselines.load(path).meta["run"] == second
    assert len(baselines.load(path).outcomes) == 2


def test_machine_class_becomes_one_folder(store: Store, root: Path) -> None:
    run = store.begin_run("demo", {}, dataclasses.replace(ENVIRONMENT, machine_class="../NVIDIA H200 (80 %)"), CODE)
    store.save(run, ok(case("full")))
    store.finish_run(run, "finished")
    assert baselines.save(store, run, root) == root / "NVIDIA-H200-80" / "demo.json"


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", " ", "a b"])
def test_names_cannot_leave_the_folder(store: Store, root: Path, name: str) -> None:
    with pytest.raises(BadBaseline, match="is not a valid name of a baseline"):
        baselines.save(store, measured(store), root, name)
    assert not root.exists()


@pytest.mark.parametrize("state", ["running", "interrupted", "failed"])
def test_unfinished_run_is_no_baseline(store: Store, root: Path, state: str) -> None:
    with pytest.raises(BadBaseline, match=f"is {state}, so cases are missing"):
        baselines.save(store, measured(store, state=state), root)


def test_run_without_figures_is_no_baseline(store: Store, root: Path) -> None:
    with pytest.raises(NothingMeasured, match="holds no ok outcome"):
        baselines.save(store, measured(store, plan()[3:]), root)
    with pytest.raises(BadStore, match="There is no run 999"):
        baselines.save(store, 999, root)


def test_a_comparison_is_no_baseline(store: Store, root: Path) -> None:
    run = store.begin_run("compare/demo", {}, ENVIRONMENT, CODE)
    store.save(run, ok(case("full")))
    store.finish_run(run, "finished")
    with pytest.raises(BadBaseline, match=f"Run {run} is a comparison"):
        baselines.save(store, run, root, "demo")


def test_list_shows_every_file_and_what_is_wrong_with_it(store: Store, root: Path) -> None:
    assert baselines.list_(root) == []
    path = baselines.save(store, measured(store), root, reason="first")
    (root / "h200").mkdir()
    (root / "h200" / "cut.json").write_text(path.read_text()[:300])
    good, bad = baselines.list_(root)
    assert (good.machine_class, good.name, good.plan, good.outcomes) == ("ci-cpu", "demo", "demo", 4)
    assert (good.reason, good.problem) == ("first", "")
    assert good.saved
    assert (bad.machine_class, bad.name, bad.outcomes) == ("h200", "cut", 0)
    assert "is cut off" in bad.problem


@pytest.mark.parametrize("series", ["two", "2", 0, 1.5, None, True, [1]])
def test_a_series_that_is_none_is_listed_as_a_problem(series: object, store: Store, root: Path) -> None:
    path = baselines.save(store, measured(store), root)
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "meta": {**data["meta"], "series": series}}))
    (found,) = baselines.list_(root)
    assert f"has series {series!r}" in found.problem


def test_missing_file_names_the_nearest(store: Store, root: Path) -> None:
    path = baselines.save(store, measured(store), root)
    with pytest.raises(BadBaseline, match=r"no baseline .*dmeo\.json.*Did you mean .*demo\.json\?"):
        baselines.load(path.with_name("dmeo.json"))
    with pytest.raises(BadBaseline, match="Known: none"):
        baselines.load(root / "nowhere" / "x" / "demo.json")


def test_files_that_are_no_baseline(tmp_path: Path) -> None:
    binary, folder = tmp_path / "binary.json", tmp_path / "folder.json"
    binary.write_bytes(b"\xff\xfe\x00")
    folder.mkdir()
    with pytest.raises(BadBaseline, match="is not text"):
        baselines.load(binary)
    with pytest.raises(BadBaseline, match="cannot be read"):
        baselines.load(folder)


def test_a_baseline_of_another_machine_is_not_offered(store: Store, root: Path) -> None:
    baselines.save(store, measured(store), root)
    with pytest.raises(BadBaseline) as caught:
        baselines.load(root / "other-machine" / "demo.json")
    assert "Did you mean" not in (caught.value.remedy or "")
    assert "Known: none (1 of other machines)" in (caught.value.remedy or "")


def test_only_a_reason_replaces_what_is_accepted(store: Store, root: Path) -> None:
    run = store.run(measured(store))
    baselines.refuse_present(run, root)
    baselines.save(store, run.id, root)
    with pytest.raises(BadBaseline, match="accepted already") as caught:
        baselines.refuse_present(run, root)
    assert "promote" in (caught.value.remedy or "")
    baselines.refuse_present(run, root, "another")


ACCEPTED = sorted((Path(__file__).parents[2] / "baselines" / "accepted").glob("*/*.json"))


@pytest.mark.parametrize("path", ACCEPTED, ids=lambda path: path.stem)
def test_an_accepted_baseline_passes_against_itself(path: Path) -> None:
    accepted = baselines.load(path)
    comparison = compare(accepted, accepted.outcomes, accepted.environment, plan=accepted.meta["plan"])
    assert (comparison.exit_code, comparison.coverage) == (0, 1.0)


def test_place_that_cannot_be_written(store: Store, root: Path) -> None:
    root.parent.mkdir()
    root.write_text("in the way")
    with pytest.raises(BadBaseline, match="cannot be written") as caught:
        baselines.save(store, measured(store), root)
    assert caught.value.remedy == "Name another folder for baselines."
    with pytest.raises(BadBaseline, match="cannot be written") as caught:
        incidents.save(root / "register.json", [])
    assert caught.value.remedy == "Name another file with --incidents."


def test_newer_baseline(store: Store, root: Path) -> None:
    path = baselines.save(store, measured(store), root)
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    with pytest.raises(BadBaseline, match="has format 99"):
        baselines.load(path)
