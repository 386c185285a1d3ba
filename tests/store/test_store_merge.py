"""Pruning, and merging of stores."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import select, update
from store_examples import CODE, ENVIRONMENT, case, count_rows, ok

from cachemark.cli import main
from cachemark.core.errors import BadStore
from cachemark.core.facts import Facts
from cachemark.gate.nights import nights, unchanged
from cachemark.store import leases, schema
from cachemark.store.db import Store
from cachemark.store.merge import merge
from cachemark.store.rows import Verdict
from cachemark.store.schema import OutcomeRow, RunRow
from cachemark.store.upkeep import check, prune


def night(store: Store, day: int, *numbers: int, plan: str = "nightly") -> int:
    """Add a run on day ``day`` of a year, one outcome for each number, with an artifact of its own and one that all share."""
    run = store.begin_run(plan, {}, ENVIRONMENT, CODE)
    started = f"2030-{1 + day // 28:02d}-{1 + day % 28:02d}T01:00:00+00:00"
    with store._writing() as session:
        session.execute(update(RunRow).where(RunRow.id == run).values(started=started))
    for number in numbers:
        key = f"{run} {number}"
        store.save(run, ok(number, result_key=key), {"own.bin": key.encode(), "shared.bin": b"the same every night"})
    store.finish_run(run, "finished")
    return run


def verdict(store: Store, run: int, label: str) -> None:
    store.save_verdicts(run, [Verdict(case(1).key, "x", "latency", label)])


def remaining(store: Store, nights: int) -> list[int]:
    before, planned = count_rows(store), prune(store, nights)
    assert count_rows(store) == before, "a dry pruning changes nothing"
    assert prune(store, nights, dry=False) == planned
    assert prune(store, nights).runs == 0
    assert check(store) == []
    return [run.id for run in reversed(store.runs())]


def test_old_runs_and_files_that_only_they_name_are_deleted_by_the_command_with_yes_alone(path: Path, store: Store) -> None:
    for day in (0, 0, 5, 7, 7):
        night(store, day, 1, 2)
    files = [store.outcomes(run)[0].artifacts for run in (1, 3)]
    planned = prune(store, 2)
    assert (planned.runs, planned.outcomes, planned.files, planned.kept) == (2, 4, 4, 3)
    assert remaining(store, 2) == [3, 4, 5]
    assert not store.artifacts.path(files[0]["own.bin"]).exists()
    assert [store.artifacts.read(files[1][name]) for name in ("own.bin", "shared.bin")] == [b"3 1", b"the same every night"]
    assert store.find("1 1") is None
    assert remaining(store, 0) == []
    assert not store.artifacts.path(files[1]["shared.bin"]).exists()
    assert [night(store, day, 1) for day in (9, 10, 11)] == [6, 7, 8], "numbers are never used twice"
    arguments = ["db", "prune", "--store", str(path), "--nights", "1"]
    assert "Would delete 2 runs with 2 outcomes and 2 files" in CliRunner().invoke(main, arguments).output
    assert len(store.runs()) == 3
    assert "Deleted 2 runs" in CliRunner().invoke(main, [*arguments, "--yes"]).output
    assert len(store.runs()) == 1


def test_baselines_regressions_and_runs_whose_outcomes_are_reused_are_kept(store: Store) -> None:
    for day in range(7):
        night(store, day, day)
    store.keep(1)
    verdict(store, 2, "regressed")
    verdict(store, 3, "equivalent")
    store.reuse(5, "4 3")
    store.reuse(7, "5 4")
    assert remaining(store, 1) == [1, 2, 4, 5, 7]


@pytest.fixture
def other(tmp_path: Path) -> Store:
    """A store that comes back from another machine, with a run of two outcomes and one that reused one of them."""
    opened = Store.open(tmp_path / "other.db")
    night(opened, 3, 1, 2)
    later = night(opened, 4, 3)
    opened.reuse(later, "1 1")
    return opened


def test_merging_takes_runs_outcomes_and_artifacts(store: Store, other: Store) -> None:
    night(store, 0, 9)
    merged = merge(store, other)
    assert (merged.runs, merged.outcomes, merged.known) == (2, 3, 0)
    assert [(run.started[:10], run.state) for run in store.runs()] == [
        (day, "finished") for day in ("2030-01-05", "2030-01-04", "2030-01-01")]
    assert [o.samples for o in store.outcomes(2)] == [o.samples for o in other.outcomes(1)]
    assert store.artifacts.read(store.outcomes(2)[0].artifacts["own.bin"]) == b"1 1"
    assert (store.reused(3), len(store.reused(3))) == (other.reused(2), 1)


def test_an_interrupted_or_repeated_merge_adds_nothing(store: Store, other: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison(other, 6)
    before = count_rows(store)
    with monkeypatch.context() as patch:
        patch.setattr("cachemark.store.merge.Merged", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            merge(store, other)
    assert count_rows(store) == before
    assert merge(store, other).outcomes == 11
    counts = count_rows(store)
    assert (counts["run"], counts["outcome"], counts["membership"]) == (3, 11, 12)
    assert (merge(store, other).outcomes, merge(other, other).outcomes) == (0, 0)
    assert count_rows(store) == counts


def test_runs_of_two_numerics_stay_two(store: Store, other: Store) -> None:
    """The same plan at the same moment, as two jobs of one machine that differ in their libraries."""
    night(store, 3, 1, 2)
    with other._writing() as session:
        session.execute(update(RunRow).where(RunRow.id == 1).values(fingerprint="other libraries"))
    assert merge(store, other).runs == 2
    assert merge(store, other).runs == 0


def comparison(store: Store, day: int, count: int = 4, *, ends: bool = True) -> int:
    """Add a comparison with ``count`` pairs of one configuration, and its verdict against its first side."""
    run = night(store, day, plan="compare/nightly")
    for number in range(1, count + 1):
        for side in ("before", "after"):
            pair = {"run": run, "configuration": "A/A linear 1/4", "number": number, "side": side, "what": "times"}
            store.save(run, ok(1, seconds=1.0, facts=Facts.from_json({"pair": pair})), trial=f"linear 1/4, pair {number}, {side}")
    if ends:
        verdict(store, run, "equivalent")
        return run
    with store._writing() as session:
        session.execute(update(RunRow).where(RunRow.id == run).values(state="running"))
        leases.beat(session, run)
    return run


def test_a_comparison_keeps_its_verdicts_and_the_names_of_its_trials(store: Store, other: Store) -> None:
    run = comparison(other, 6)
    mine = comparison(store, 7)
    merge(store, other)
    merged = store.runs()[0]
    assert (merged.plan, store.verdicts(merged.id)) == ("compare/nightly", other.verdicts(run))
    assert len(store.verdicts(mine)) == 1, "that of the store's own comparison stays"
    with store._reading() as mine_read, other._reading() as their_read:
        named = select(OutcomeRow.trial).where(OutcomeRow.trial != "").order_by(OutcomeRow.id)
        assert [*mine_read.scalars(named)] == [*their_read.scalars(named)] * 2
    assert {o.facts.pair.run for o in store.outcomes(merged.id)} == {merged.id}, "or pairs of two comparisons would mix"
    assert [night.run.id for night in nights(store, "nightly", ENVIRONMENT.machine_class)] == [merged.id, mine], "by their days"
    assert [len(ratios) for ratios in unchanged(o for r in (mine, merged.id) for o in store.outcomes(r)).values()] == [4, 4]


def test_a_run_that_was_merged_while_it_ran_ends_at_the_next_merge(store: Store, other: Store) -> None:
    run = comparison(other, 6, 2, ends=False)
    merge(store, other)
    assert store.runs()[0].state == "interrupted"
    assert not nights(store, "nightly", ENVIRONMENT.machine_class), "half a comparison has no verdict"
    other.save(run, ok(2))
    other.finish_run(run, "finished")
    assert merge(store, other).outcomes == 1
    assert (store.runs()[0].state, store.runs()[0].finished) == ("finished", other.run(run).finished)


def test_merging_writes_no_outcome_again_and_flushes_folders_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path / "large.db") as large:
        night(large, 2, *range(60))
        written, flushed = [], []
        canonical, fsync = schema.canonical, os.fsync
        monkeypatch.setattr(schema, "canonical", lambda value: (written.append(1), canonical(value))[1])
        monkeypatch.setattr(os, "fsync", lambda handle: (flushed.append(1), fsync(handle))[1])
        merge(store, large)
        assert len(written) < 20, "columns of JSON are copied as text, except those of the run"
        assert len(flushed) < 2.5 * 61, "one for each artifact, and one for each folder"
        assert [outcome.facts for outcome in store.outcomes(1)] == [outcome.facts for outcome in large.outcomes(1)]
        assert check(store) == []


@pytest.mark.parametrize("damage", ["UPDATE outcome SET facts = '{'", "UPDATE membership SET outcome_id = 77 WHERE id = 1"])
def test_damage_is_blamed_on_the_store_that_has_it(store: Store, other: Store, damage: str) -> None:
    with closing(sqlite3.connect(other.where)) as connection, connection:
        connection.execute(damage)
    before = count_rows(store)
    with pytest.raises(BadStore, match=r"other\.db is damaged"):
        merge(store, other)
    assert count_rows(store) == before
