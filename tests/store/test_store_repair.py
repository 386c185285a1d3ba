"""What a repair does to a damaged store, row by row and page by page: nothing is deleted, and what can be read is there again."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from store_examples import begin, case, ok

from cachemark.cli import main
from cachemark.core import units
from cachemark.core.errors import BadStore
from cachemark.core.outside_metrics import KEY, full_name
from cachemark.core.result import Outcome, Status
from cachemark.store import pages
from cachemark.store.db import Store
from cachemark.store.merge import merge
from cachemark.store.rows import PRUNED, Verdict
from cachemark.workflows.upkeep import find_damage, repair_store

RUNS, EACH = 3, 40


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of some 50 pages: three runs, one carried outcome, verdicts. Not to be changed."""
    path = tmp_path_factory.mktemp("whole") / "whole.db"
    with Store.open(path) as store:
        for number in range(RUNS):
            run = begin(store)
            for key in range(EACH):
                store.save(run, ok(key, skip_key=f"{number} {key}", facts={"note": "y" * 300}))
            store.carry(run, f"{number - 1} 0")
            baseline = store.note_baseline(f"{run}" * 64, name="b", plan="demo", machine_class="m", run_id=run)
            store.save_verdicts(run, baseline, [Verdict(case(1).key, "x", "latency", "equivalent")])
            store.finish_run(run, "finished")
    return path


@pytest.fixture
def rotten(whole: Path, path: Path) -> Path:
    shutil.copy(whole, path)
    return path


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            assert connection.execute(statement).rowcount


def all_rows(path: Path) -> dict[str, set[tuple[object, ...]]]:
    """Every row of every table."""
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")]
        return {name: set(connection.execute(f'SELECT * FROM "{name}"')) for name in names}


# -- rows ---------------------------------------------------------------------------------------------------------------
DAMAGE = (
    "UPDATE outcome SET facts = '[' WHERE id = 3", "UPDATE sample SET packed = x'00' WHERE outcome_id = 4 AND metric = 'kl'",
    "UPDATE \"case\" SET body = '{}' WHERE key = (SELECT case_key FROM outcome WHERE id = 5)",
    "UPDATE run SET plan_json = 'x', started = 'once' WHERE id = 2", "UPDATE environment SET facts = '7'",
    "UPDATE trial SET name = x'ff' WHERE id = 8", "DELETE FROM environment WHERE id = 99 OR id = 1", "DELETE FROM outcome WHERE id = 9",
    "UPDATE verdict SET change = 'much' WHERE id = 1", "UPDATE baseline SET name = 5e400 WHERE id = 3",
)


def test_everything_that_was_there_is_still_there(rotten: Path) -> None:
    edit(rotten, *DAMAGE)
    before = all_rows(rotten)
    assert find_damage(rotten)
    done = repair_store(rotten)
    assert (done.kept, done.left, find_damage(rotten)) == (None, (), [])
    after = all_rows(rotten)
    aside = [(source, json.loads(content)) for _, source, _, content, _ in after["set_aside"]]
    assert len(aside) == sum(done.rows.values())
    for table in before.keys() - {"lease", "set_aside"}:
        missing = before[table] - after[table]
        kept = [tuple(_value(held) for held in content.values()) for source, content in aside if source == table]
        assert missing <= set(kept), table
    with Store.open(rotten) as store:
        assert [run.state for run in store.runs()] == ["finished"] * RUNS
        assert {o.status for run in store.runs() for o in store.outcomes(run.id)} == {Status.OK}


def _value(held: object) -> object:
    """A value that was set aside as the database had it."""
    return bytes.fromhex(held["hex"]) if isinstance(held, dict) else float(held) if held in ("0.0", "0.25", "inf", "1.0") else held


@pytest.mark.parametrize("lost", [
    "DELETE FROM trial WHERE id IN (3, 4)", "DELETE FROM membership WHERE outcome_id IN (3, 4) AND NOT carried",
])  # fmt: skip
def test_a_place_in_a_run_that_others_still_tell_comes_back(lost: str, rotten: Path) -> None:
    edit(rotten, lost)
    assert len(find_damage(rotten)) == 2
    assert repair_store(rotten).rows == {"relinked": 2}
    assert find_damage(rotten) == []
    with Store.open(rotten) as store:
        assert len(store.outcomes(1)) == EACH


def test_a_damaged_outcome_is_not_carried_over(rotten: Path) -> None:
    """An earlier one of the same case is, where it is whole."""
    edit(rotten, "UPDATE outcome SET skip_key = 'same' WHERE id IN (7, 47)", "UPDATE outcome SET facts = '' WHERE id = 47")
    with Store.open(rotten) as store:
        assert store.find("same") == ok(6, skip_key="same", facts={"note": "y" * 300})
        assert store.find("2 0") is not None
        (latest,) = [o for o in store.outcomes(2) if o.case == case(6)]
        assert latest.status is Status.DAMAGED
        run = begin(store)
        with pytest.raises(Exception, match="ck_outcome_status"):
            store.save(run, latest)


def test_damaged_outcomes_stay_behind_in_a_merge(rotten: Path, tmp_path: Path) -> None:
    edit(rotten, "UPDATE outcome SET facts = '' WHERE id = 7")
    with Store.open(tmp_path / "all.db") as target, Store.open(rotten, read_only=True) as source:
        found = merge(target, source)
        assert (found.runs, found.outcomes, found.damaged) == (RUNS, RUNS * EACH - 1, 1)
    done = CliRunner().invoke(main, ["db", "merge", str(rotten), "--store", str(tmp_path / "all.db")])
    assert "1 damaged outcomes left out" in done.output


def test_a_pruned_outcome_is_no_damaged_one(rotten: Path) -> None:
    from cachemark.store.prune import prune

    with Store.open(rotten) as store:
        edit(rotten, "DELETE FROM verdict", "DELETE FROM baseline")
        assert prune(store, 0, dry=False).outcomes
        assert any(PRUNED in o.facts.get("footnotes", ()) for o in store.outcomes(1))
    assert find_damage(rotten) == []


def test_a_missing_file_is_told_and_its_figures_stand(rotten: Path) -> None:
    with Store.open(rotten) as store:
        store.save(1, ok(500), {"grid.png": b"png", "tokens.bin": b"tokens"})
        files = store.outcomes(1)[-1].artifacts
        store.artifacts.path(files["grid.png"]).unlink()
        store.artifacts.path(files["tokens.bin"]).write_bytes(b"others")
    told = sorted(one.what for one in find_damage(rotten))
    assert ["cannot be read" in told[0], "is damaged" in told[1]] == [True, True]
    done = repair_store(rotten)
    assert (done.rows, len(done.left)) == ({}, 2)
    listed = CliRunner().invoke(main, ["db", "check", "--store", str(rotten), "--json"])
    assert len(json.loads(listed.stdout)) == 2


# -- pages --------------------------------------------------------------------------------------------------------------
def outcomes(path: Path) -> list[Outcome]:
    with Store.open(path, create=False) as store:
        return [o for run in store.runs() for o in store.outcomes(run.id)]


def flip(path: Path, page: int) -> None:
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        old = file.read(4096)
        file.seek((page - 1) * 4096)
        file.write(bytes(byte ^ 255 for byte in old))


@pytest.mark.parametrize("share", [0.999, 0.99, 0.9])
def test_a_file_that_was_cut_short(share: float, rotten: Path) -> None:
    rotten.open("r+b").truncate(int(share * rotten.stat().st_size))
    damaged = rotten.read_bytes()
    for read_only in (True, False):
        with pytest.raises(BadStore, match="damaged"):
            Store.open(rotten, create=False, read_only=read_only)
    assert rotten.read_bytes() == damaged
    done = repair_store(rotten)
    assert done.kept is not None
    assert done.kept.read_bytes() == damaged
    assert find_damage(rotten) == []
    assert len(outcomes(rotten)) >= 0.6 * share * RUNS * EACH
    assert not [file.name for file in rotten.parent.iterdir() if "rescu" in file.name]


@pytest.mark.parametrize("which", [0.5, 0.75])
def test_a_flipped_page(which: float, rotten: Path) -> None:
    """One on which rows stand, and not the one that leads to all others of a table."""
    with closing(sqlite3.connect(rotten)) as connection:
        roots = {page for (page,) in connection.execute("SELECT rootpage FROM sqlite_master")}
    others = sorted({*range(2, rotten.stat().st_size // 4096 + 1)} - roots)
    flip(rotten, others[int(which * len(others))])
    with pytest.raises(BadStore, match="damaged"):
        Store.open(rotten, create=False, read_only=True)
    repair_store(rotten)
    assert find_damage(rotten) == []
    assert len(outcomes(rotten)) >= 0.6 * RUNS * EACH


def test_the_list_of_tables_itself(path: Path) -> None:
    """In a small store it is the end of the file."""
    with Store.open(path) as store:
        store.save(begin(store), ok(1))
    path.open("r+b").truncate(path.stat().st_size - 1000)
    repair_store(path)
    assert find_damage(path) == []
    assert outcomes(path) == [ok(1)]


def test_of_a_large_file_the_tables_are_looked_at_that_say_what_there_is(rotten: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "WHOLE", 10_000)
    with closing(sqlite3.connect(rotten)) as connection:
        roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'").fetchall())
    flip(rotten, roots["sample"])
    Store.open(rotten, create=False, read_only=True).close()
    flip(rotten, roots["sample"])
    flip(rotten, roots["membership"])
    with pytest.raises(BadStore, match="damaged"):
        Store.open(rotten, create=False, read_only=True)


def test_a_file_is_looked_at_once(rotten: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it changes."""
    looked: list[Path] = []
    real = pages.faults
    monkeypatch.setattr(pages, "faults", lambda cursor, path: looked.append(path) or real(cursor, path))
    for _ in range(3):
        Store.open(rotten, create=False, read_only=True).close()
    assert len(looked) == 1
    edit(rotten, "UPDATE run SET plan = 'other'")
    Store.open(rotten, create=False, read_only=True).close()
    assert len(looked) == 2


@pytest.mark.parametrize(("found", "right"), [
    ([{"expected": "as many bytes", "found": "more"}], True), ([], True), (["x"], False), ("x", False), ({"expected": "x"}, False),
    (3, False),
])  # fmt: skip
def test_findings_of_an_inspection_are_tables(found: object, right: bool, path: Path) -> None:
    with Store.open(path) as store:
        run = begin(store)
        store.save(run, ok(1, facts={"flagged": found}))
        (read,) = store.outcomes(run)
    assert read.status is (Status.OK if right else Status.DAMAGED)
    assert right or "its fact 'flagged' is not what it should be" in read.log


def test_figures_of_a_metric_that_only_its_case_knows_are_no_damage(path: Path) -> None:
    """A process that reads a store has met no metric of a plug-in before."""
    stated = {"title": "Contrast", "unit": "", "better": "higher", "kind": "quality", "meaning": "How grey it is.", "within": [0.0, 1.0],
              "deterministic": False, "code": "0123456789ab"}  # fmt: skip
    name = full_name("contrast", stated)
    with Store.open(path) as store:
        run = begin(store)
        store.save(run, ok(case=case(evaluation={KEY: {name: stated}}), samples={name: [0.25, 0.5]}))
        store.finish_run(run, "finished")
    units.OUTSIDE.clear()
    assert find_damage(path) == []
    units.OUTSIDE.clear()
    assert not repair_store(path).rows
    units.OUTSIDE.clear()
    with Store.open(path) as store:
        (found,) = store.outcomes(run)
    assert (found.status, found.samples) == (Status.OK, {name: [0.25, 0.5]})
