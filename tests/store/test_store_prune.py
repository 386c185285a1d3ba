"""What a pruned store still knows, what is never pruned, and stores that are taken into others."""

from __future__ import annotations

import random
import sqlite3
import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update
from store_examples import CODE, ENVIRONMENT, case, failed, ok

from cachemark.cli import main
from cachemark.core.errors import BadStore
from cachemark.gate.nights import nights, unchanged
from cachemark.store import leases
from cachemark.store.db import Store
from cachemark.store.merge import merge
from cachemark.store.prune import SHARES, Pruned, nights_kept, prune, quantiles
from cachemark.store.rows import PRUNED, Verdict
from cachemark.store.schema import RunRow, TrialRow

LATENCIES = [random.Random(0).uniform(1, 2) for _ in range(21)]


def night(store: Store, day: int, *numbers: int, plan: str = "nightly") -> int:
    """A run on day ``day`` of a year, one outcome for each number, with an artifact of its own and one that all share."""
    run = store.begin_run(plan, {}, ENVIRONMENT, CODE)
    started = f"2030-{1 + day // 28:02d}-{1 + day % 28:02d}T01:00:00+00:00"
    with store._writing() as session:
        session.execute(update(RunRow).where(RunRow.id == run).values(started=started))
    for number in numbers:
        outcome = ok(number, samples={"latency": LATENCIES, "kl": [0.1, 0.2, 0.6], "kv_logical": [4096.0]}, result_key=f"{run} {number}")
        store.save(run, outcome, {"own.bin": f"{run} {number}".encode(), "shared.bin": b"the same every night"})
    store.finish_run(run, "finished")
    return run


def pruned(store: Store, nights: int) -> Pruned:
    return prune(store, nights, dry=False)


# ------------------------------------------------------------------------------------------------ quantiles

@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_quantiles_keep_ends_and_median(values: list[float]) -> None:
    points = quantiles(values)
    assert len(points) == len(SHARES)
    assert points == sorted(points)
    assert (points[0], points[-1]) == (min(values), max(values))
    assert statistics.median(points) == pytest.approx(statistics.median(values), rel=1e-12, abs=1e-9)


def test_quantiles_are_between_neighbours_in_proportion() -> None:
    assert quantiles([float(i) for i in range(101)]) == [0, 5, 25, 50, 75, 95, 100]
    assert quantiles([1.0, 2.0]) == pytest.approx([1, 1.05, 1.25, 1.5, 1.75, 1.95, 2])


# ------------------------------------------------------------------------------------------------ pruning

def test_a_dry_pruning_counts_and_changes_nothing(store: Store, path: Path) -> None:
    for day in range(4):
        night(store, day, 1, 2)
    before = store.outcomes(1)
    pruning = prune(store, 2)
    assert pruning.outcomes == 4
    assert pruning.kept == 4
    assert pruning.values == 4 * (21 - len(SHARES))
    assert pruning.files == 4, "what all nights share is still named"
    assert store.outcomes(1) == before
    assert pruned(store, 2) == pruning, "it does what it said"


def test_of_old_nights_quantiles_and_means_stay(store: Store) -> None:
    for day in range(3):
        night(store, day, 1)
    complete = store.outcomes(1)[0]
    pruned(store, 1)
    old, new = store.outcomes(1)[0], store.outcomes(3)[0]
    assert old.samples["latency"] == quantiles(LATENCIES)
    assert old.samples["kl"] == complete.samples["kl"], "fewer values than quantiles stay as they are"
    for name in complete.samples:
        assert old.median(name) == pytest.approx(complete.median(name))
        assert old.mean(name) == pytest.approx(complete.mean(name))
    assert old.mean("latency") != statistics.fmean(quantiles(LATENCIES)), "the mean is that of the raw values"
    assert old.facts["condensed"]["latency"]["count"] == 21
    assert PRUNED in old.facts["footnotes"]
    assert old.artifacts == {}
    assert new.samples["latency"] == LATENCIES
    assert "condensed" not in new.facts


def test_files_go_with_the_last_outcome_that_names_them(store: Store) -> None:
    for day in range(3):
        night(store, day, 1)
    own = [store.outcomes(run)[0].artifacts["own.bin"] for run in (1, 2, 3)]
    shared = store.outcomes(1)[0].artifacts["shared.bin"]
    pruned(store, 1)
    assert [store.artifacts.path(file).exists() for file in own] == [False, False, True]
    assert store.artifacts.read(shared) == b"the same every night"
    pruned(store, 0)
    assert not store.artifacts.path(shared).exists()


def test_baselines_and_incidents_are_pinned(store: Store) -> None:
    for day in range(4):
        night(store, day, day)
    store.note_baseline("d" * 64, name="b", plan="nightly", machine_class="m", run_id=1)
    baseline = store.note_baseline("e" * 64, name="c", plan="nightly", machine_class="m")
    store.save_verdicts(2, baseline, [Verdict(case(1).key, "x", "latency", "regressed")])
    store.save_verdicts(3, baseline, [Verdict(case(2).key, "x", "latency", "equivalent")])
    assert pruned(store, 1).outcomes == 1
    assert ["condensed" in store.outcomes(run)[0].facts for run in (1, 2, 3, 4)] == [False, False, True, False]


def test_a_comparison_is_pinned_by_what_it_found_alone(store: Store) -> None:
    """It files its first side where a baseline would stand, and nothing else is judged against that."""
    for day, verdict in enumerate(("equivalent", "regressed", "equivalent")):
        run = night(store, day, day, plan="compare/nightly")
        side = store.note_baseline(f"{day}" * 64, name="full", plan="nightly", machine_class="m", run_id=run)
        store.save_verdicts(run, side, [Verdict(case(day).key, "x", "latency", verdict)])
    pruned(store, 1)
    assert ["condensed" in store.outcomes(run)[0].facts for run in (1, 2, 3)] == [True, False, False]


def test_what_was_pruned_is_measured_again(store: Store) -> None:
    for day in range(2):
        night(store, day, 1)
    pruned(store, 1)
    later = night(store, 2)
    assert store.find("1 1") is None
    assert store.reuse(later, "1 1") is None
    assert store.reuse(later, "2 1") == store.find("2 1") == store.latest_for_case(case(1).key, ok=True)
    pruned(store, 0)
    assert store.latest_for_case(case(1).key, ok=True) is None
    assert store.latest_for_case(case(1).key) is not None


def test_what_a_newer_run_reused_keeps_everything(store: Store) -> None:
    night(store, 0, 1, 2)
    later = night(store, 9, 3)
    store.reuse(later, "1 1")
    assert pruned(store, 1).outcomes == 1
    assert {o.case.parameters["number"]: "condensed" in o.facts for o in store.outcomes(1)} == {1: False, 2: True}


def test_nights_are_days_not_runs(store: Store) -> None:
    for day in (0, 0, 5, 5, 5):
        night(store, day, 1)
    assert prune(store, 1).outcomes == 2
    assert prune(store, 2).outcomes == 0


def test_pruning_twice_is_pruning_once(store: Store, path: Path) -> None:
    night(store, 0, 1)
    night(store, 1, 1)
    pruned(store, 1)
    before = store.outcomes(1)
    assert pruned(store, 1).outcomes == 0
    assert store.outcomes(1) == before
    store.save(2, failed(5))
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []


def test_a_policy_that_is_none(store: Store) -> None:
    assert nights_kept("raw=7") == 7
    with pytest.raises(BadStore, match=r"not a policy.*raw=60, to keep all raw values of the last N nights"):
        nights_kept("everything")


def test_the_command_is_dry_unless_told(path: Path, store: Store) -> None:
    for day in range(3):
        night(store, day, 1)
    arguments = ["db", "prune", "--store", str(path), "--policy", "raw=1"]
    result = CliRunner().invoke(main, arguments)
    assert "Would prune 2 outcomes" in result.output
    assert "Nothing was changed" in result.output
    assert store.outcomes(1)[0].samples["latency"] == LATENCIES
    assert "Pruned 2 outcomes" in CliRunner().invoke(main, [*arguments, "--yes"]).output
    store.save(3, failed(2))
    messages = CliRunner().invoke(main, [*arguments, "--yes"]).output
    assert "Pruned 0 outcomes" in messages
    assert "1 outcomes keep everything" in messages, "neither those pruned before nor one without values"
    assert store.outcomes(1)[0].samples["latency"] == quantiles(LATENCIES)


# ------------------------------------------------------------------------------------------------ merging

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
    assert [run.started[:10] for run in store.runs()] == ["2030-01-05", "2030-01-04", "2030-01-01"]
    assert [run.state for run in store.runs()] == ["finished"] * 3
    assert [o.samples for o in store.outcomes(2)] == [o.samples for o in other.outcomes(1)]
    assert store.artifacts.read(store.outcomes(2)[0].artifacts["own.bin"]) == b"1 1"
    assert store.reused(3) == other.reused(2)
    assert len(store.reused(3)) == 1


def test_merging_again_adds_nothing_and_a_broken_merge_is_completed(store: Store, other: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, real = [], Store.save

    def save(self: Store, *given: object, **more: object) -> int:
        if len(saved) == 1:
            raise KeyboardInterrupt
        saved.append(given)
        return real(self, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "save", save)
    with pytest.raises(KeyboardInterrupt):
        merge(store, other)
    monkeypatch.undo()
    assert merge(store, other).outcomes == 2
    counts = store.counts()
    assert merge(store, other).outcomes == 0
    assert store.counts() == counts
    assert (counts["run"], counts["outcome"], counts["membership"]) == (2, 3, 4)


def test_merging_into_the_source_adds_nothing(other: Store) -> None:
    assert (merge(other, other).runs, merge(other, other).outcomes) == (0, 0)


def test_pruned_outcomes_stay_pruned_in_another_store(store: Store, other: Store) -> None:
    pruned(other, 1)
    merge(store, other)
    (mine,) = (o for o in store.outcomes(1) if o.case.parameters["number"] == 2)
    assert mine.facts["condensed"]["latency"]["count"] == 21
    assert mine.mean("latency") == pytest.approx(statistics.fmean(LATENCIES))
    assert prune(store, 0).outcomes == 2, "what is pruned is not pruned again"


def comparison(store: Store, day: int, count: int = 4, *, ends: bool = True) -> int:
    """A comparison with so many pairs of one configuration, its verdict filed against its first side."""
    run = night(store, day, plan="compare/nightly")
    for number in range(1, count + 1):
        for side in ("before", "after"):
            pair = {"run": run, "configuration": "A/A linear 1/4", "number": number, "side": side, "what": "times"}
            store.save(run, ok(1, seconds=1.0, facts={"pair": pair}), trial=f"linear 1/4, pair {number}, {side}")
    with store._writing() as session:
        session.execute(update(RunRow).where(RunRow.id == run).values(state="finished" if ends else "running"))
        if not ends:
            leases.hold(session, run)
    if ends:
        side_baseline = store.note_baseline(f"{run}", name="main~1", plan="nightly", machine_class="ci-cpu", run_id=run)
        verdict = Verdict(case(1).key, "linear 1/4", "latency", "equivalent", f"{count} pairs", 1.0, 1.0, 1.0)
        store.save_verdicts(run, side_baseline, [verdict])
    return run


def trial_names(store: Store) -> list[str]:
    with store._reading() as session:
        return list(session.scalars(select(TrialRow.name).where(TrialRow.name.is_not(None)).order_by(TrialRow.id)))


def test_a_comparison_keeps_its_verdicts_and_the_names_of_its_trials(store: Store, other: Store) -> None:
    run = comparison(other, 6)
    mine = comparison(store, 7)
    merge(store, other)
    merged = store.runs()[0]
    assert merged.plan == "compare/nightly"
    assert store.verdicts(merged.id) == other.verdicts(run)
    assert len(store.verdicts(mine)) == 1, "that of the store's own comparison stays"
    assert trial_names(store)[-8:] == trial_names(other) == trial_names(store)[:8]
    assert {o.facts["pair"]["run"] for o in store.outcomes(merged.id)} == {merged.id}, "or pairs of two comparisons would mix"
    assert [len(ratios) for ratios in unchanged(o for r in (mine, merged.id) for o in store.outcomes(r)).values()] == [4, 4]
    counts = store.counts()
    assert merge(store, other).outcomes == 0
    assert store.counts() == counts


def test_an_older_comparison_is_not_the_newest_night_where_it_is_merged(store: Store, other: Store) -> None:
    mine = comparison(store, 7)
    comparison(other, 6)
    merge(store, other)
    listed_nights = nights(store, "nightly", ENVIRONMENT.machine_class)
    assert [night.run.started[:10] for night in listed_nights] == ["2030-01-07", "2030-01-08"]
    assert listed_nights[-1].run.id == mine


def test_pairs_of_a_config_are_told_apart_and_a_broken_merge_of_them_is_completed(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch,
) -> None:
    comparison(other, 6)
    saved, real = [], Store.save

    def save(self: Store, *given: object, **more: object) -> int:
        if len(saved) == 5:  # three are of plain runs
            raise KeyboardInterrupt
        saved.append(given)
        return real(self, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "save", save)
    with pytest.raises(KeyboardInterrupt):
        merge(store, other)
    monkeypatch.undo()
    assert not nights(store, "nightly", ENVIRONMENT.machine_class), "half a comparison judges nothing"
    assert merge(store, other).outcomes == 6
    assert len(store.outcomes(store.runs()[0].id)) == 8
    (listed_nights,) = nights(store, "nightly", ENVIRONMENT.machine_class)
    assert len(listed_nights.rows) == 1


def test_a_run_that_was_merged_while_it_ran_ends_at_the_next_merge(store: Store, other: Store) -> None:
    run = comparison(other, 6, 2, ends=False)
    merge(store, other)
    assert store.runs()[0].state == "running"
    other.save(run, ok(2))
    other.finish_run(run, "finished")
    assert merge(store, other).outcomes == 1
    assert (store.runs()[0].state, store.runs()[0].finished) == ("finished", other.run(run).finished)


def test_the_merge_command(path: Path, store: Store, other: Store) -> None:
    result = CliRunner().invoke(main, ["db", "merge", str(path.with_name("other.db")), "--store", str(path)])
    assert result.output.endswith("2 runs and 3 outcomes added, 0 runs already present.\n")
    assert CliRunner().invoke(main, ["db", "init", "--store", str(path)]).exit_code == 0
