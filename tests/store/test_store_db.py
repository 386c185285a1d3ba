"""What is saved is what comes back, and each row is where it belongs."""

import dataclasses
import json
import os
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from sqlalchemy import select
from store_examples import CODE, ENVIRONMENT, begin, case, count_rows, failed, objects, ok, outcomes, texts

from cachemark.core.errors import BadBaseline, BadStore
from cachemark.core.result import Environment, Outcome, Status
from cachemark.core.units import METRICS
from cachemark.store import leases
from cachemark.store.db import Store
from cachemark.store.exchange import FORMAT_VERSION, dump, load, rounded
from cachemark.store.rows import Verdict
from cachemark.store.schema import OutcomeRow


@pytest.mark.parametrize("state", ["finished", "interrupted", "failed"])
def test_a_run_comes_back_as_it_was_begun_and_ends_in_a_state(store: Store, state: str) -> None:
    store.finish_run(store.begin_run("demo", {"methods": ["full"], "n": 3}, ENVIRONMENT, CODE), state)
    run = store.run()
    assert (run.plan, run.plan_json, run.environment, run.code) == ("demo", {"methods": ["full"], "n": 3}, ENVIRONMENT, CODE)
    assert datetime.fromisoformat(run.started).utcoffset() is not None
    assert (run.state, run.finished >= run.started) == (state, True)  # type: ignore[operator]
    with pytest.raises(ValueError, match="not 'running'"):
        store.finish_run(run.id, "running")


def test_unknown_run_is_named(store: Store) -> None:
    begin(store)
    for use in (lambda: store.save(7, ok()), lambda: store.outcomes(7), lambda: store.finish_run(7, "failed"),
                lambda: store.reuse(7, "x"), lambda: store.save_verdicts(7, [])):
        with pytest.raises(BadStore, match=r"no run 7 .* newest is 1"):
            use()
    assert count_rows(store)["outcome"] == 0


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(outcomes, max_size=3))
def test_outcomes_come_back_equal_and_in_order(store: Store, saved: list[Outcome]) -> None:
    run = begin(store)
    for outcome in saved:
        store.save(run, outcome)
    assert store.outcomes(run) == saved


def test_cases_are_stored_once_trials_by_name_and_every_status_is_known_to_sql(store: Store) -> None:
    run, other = begin(store), begin(store)
    for owner, trial in [(run, "p1"), (run, "p1"), (run, ""), (run, ""), (other, "p1")]:
        store.save(owner, ok(1), trial=trial)
    counts = count_rows(store)
    assert (counts["case"], counts["outcome"]) == (1, 5)
    with store._reading() as session:
        assert session.scalars(select(OutcomeRow.trial).order_by(OutcomeRow.id)).all() == ["p1", "p1", "", "", "p1"]
    assert store.trials(other) == {case(1).key: "p1 of run 2"}
    statuses = [s for s in Status if s is not Status.OK]
    for status in statuses:
        store.save(run, failed(status=status))
    assert [o.status for o in store.outcomes(run)][4:] == statuses


def test_the_newest_ok_outcome_of_a_key_is_found_and_one_that_is_reused_belongs_to_both_runs(store: Store) -> None:
    run = begin(store)
    store.save(run, ok(1, result_key="k", seconds=1.0))
    store.save(run, ok(1, result_key="k", seconds=2.0))
    store.save(run, dataclasses.replace(failed(1), result_key="k"))
    assert (store.find("k").seconds, store.find("other")) == (2.0, None)
    store.save(run, ok(1, result_key=""))
    assert store.find("") is store.reuse(run, "") is None
    first = begin(store)
    store.save(first, ok(1), {"grid.png": b"png"})
    store.save(first, ok(2))
    second = begin(store)
    assert store.reuse(second, "nothing") is None
    store.save(second, ok(3))
    reused = store.reuse(second, "skip1")
    assert reused == store.outcomes(first)[0]
    assert [o.case.parameters["number"] for o in store.outcomes(second)] == [3, 1]
    assert (store.reused(second), count_rows(store)["outcome"]) == ({case(1).key}, 4 + 3)
    assert store.reuse(first, "skip1") == store.reuse(first, "skip1") == reused
    assert (len(store.outcomes(first)), store.reused(first)) == (2, frozenset())


def test_nearest_names_the_fields_that_differ(store: Store) -> None:
    run = begin(store)
    for saved in (case(1), case(1, batch=2, dtype="bfloat16"), case(1, model="other")):
        store.save(run, ok(case=saved))
    assert store.nearest(case(2)) == {"parameters.number": (1, 2)}
    assert store.nearest(case(2, batch=2, dtype="bfloat16", budget="1/2")) == {"parameters.number": (1, 2), "budget": ("1/4", "1/2")}
    assert store.nearest(case(2, model="third")) == {}


def test_artifacts_are_named_by_content_kept_once_and_named_again_where_they_are_there(store: Store, path: Path) -> None:
    run = begin(store)
    store.save(run, ok(1), {"tokens.safetensors": b"abc", "grid.png": b"abc", "raw": b"abc"})
    store.save(run, ok(2), {"tokens.safetensors": b"abc"})
    names = store.outcomes(run)[0].artifacts
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert names == {"tokens.safetensors": f"ba/{digest}.safetensors", "grid.png": f"ba/{digest}.png", "raw": f"ba/{digest}"}
    assert store.artifacts.read(names["grid.png"]) == b"abc"
    folder = path.with_name("results.db.artifacts")
    assert store.artifacts.path(names["raw"]) == folder / "ba" / digest
    assert len([p for p in folder.rglob("*") if p.is_file()]) == 3, "no partial files stay behind"
    stored = store.outcomes(run)[0]
    store.save(run, stored)
    assert store.outcomes(run)[2] == stored
    with pytest.raises(BadStore, match="is not in"):
        store.save(run, dataclasses.replace(stored, artifacts={"grid.png": "ab/" + "ab" * 32 + ".png"}))
    assert len(store.outcomes(run)) == 3


def test_artifacts_cannot_leave_the_folder_and_damaged_ones_are_mended(store: Store) -> None:
    for name in ("../../etc/passwd", "/etc/passwd", "ab/cd", "ab/" + "cd" * 32, "ab/" + "ab" * 32 + "/../x", ""):
        with pytest.raises(BadStore, match="is not a name of an artifact"):
            store.artifacts.read(name)
    run = begin(store)
    store.save(run, ok(1), {"grid.png": b"good"})
    name = store.outcomes(run)[0].artifacts["grid.png"]
    store.artifacts.path(name).write_bytes(b"bad")
    with pytest.raises(BadStore, match="is damaged"):
        store.artifacts.read(name)
    store.save(run, ok(2), {"grid.png": b"good"})
    assert store.artifacts.read(name) == b"good"
    store.artifacts.path(name).unlink()
    with pytest.raises(BadStore, match=r"cannot be read.*Copy the folder"):
        store.artifacts.read(name)
    os.mkfifo(store.artifacts.path(name))  # reading it would wait for a writer
    with pytest.raises(BadStore, match="not an ordinary file"):
        store.artifacts.read(name)


def test_verdicts_replace_earlier_ones(store: Store) -> None:
    run, rows = begin(store), [Verdict("k" * 16, "linear 1/4", "latency", "regressed", "", 0.5, 0.75, 1.5),
                               Verdict("m" * 16, "full", "status", "missing", "gone")]
    for saved in ([], rows[:1], rows):
        store.save_verdicts(run, saved)
        assert store.verdicts(run) == saved


def test_a_run_without_heartbeats_is_interrupted(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a lasting one sends them."""
    def silent(seconds: float) -> None:
        with store._writing() as session:
            session.connection().exec_driver_sql(f"UPDATE run SET beat = beat - {seconds}")

    def beat() -> None:
        with store._writing() as session:
            leases.beat(session, 1)

    begin(store)
    for change, state in ((lambda: silent(leases.LAPSE - 20), "running"), (lambda: silent(40), "interrupted"), (beat, "running"),
                          (lambda: store.finish_run(1, "finished"), "finished"), (beat, "finished")):  # a late heartbeat
        change()
        with Store.open(path, read_only=True) as reader:
            assert reader.run(1).state == reader.runs()[0].state == state
    beats: list[int] = []

    def failing_beat(session: Any, run_id: int) -> None:
        beats.append(run_id)
        if len(beats) == 2:
            raise OSError("the disk is full")

    run = begin(store)
    monkeypatch.setattr(leases, "beat", failing_beat)
    with store.alive(run, seconds=0.001):
        while len(beats) < 4:
            os.sched_yield()
    assert (set(beats), store.run(run).state) == ({run}, "running")


@pytest.fixture
def raw(store: Store, path: Path) -> Iterator[sqlite3.Connection]:
    run = begin(store)
    store.save(run, ok(1))
    store.save(run, failed(2))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA foreign_keys = ON")
    yield connection
    connection.close()


@pytest.mark.parametrize("change", [
    "UPDATE outcome SET has_judgement = 0 WHERE status = 'ok'",
    "UPDATE outcome SET samples = '{}' WHERE status = 'ok'",
    "UPDATE outcome SET samples = '{\"latency\":[1.0]}' WHERE status = 'oom'",
    "UPDATE outcome SET log = '' WHERE status = 'oom'",
    "UPDATE outcome SET status = 'fine'",
    "UPDATE outcome SET status = 'oom', log = 'x' WHERE status = 'ok'",  # its samples still stand
    "UPDATE outcome SET status = NULL WHERE status = 'ok'",
    "UPDATE outcome SET samples = NULL WHERE status = 'oom'",
    "UPDATE outcome SET has_judgement = NULL WHERE status = 'ok'",
    "UPDATE run SET state = 'done'",
    "DELETE FROM \"case\"",
    "DELETE FROM run",
    "INSERT INTO membership (run_id, outcome_id) VALUES (1, 1)",
])
def test_sql_refuses(raw: sqlite3.Connection, change: str) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        raw.execute(change)


def text_of(*outcomes: Outcome, **meta: Any) -> str:
    return dump(outcomes or [ok(1), ok(2), failed(3)], ENVIRONMENT, CODE, **meta)


@settings(max_examples=20, deadline=None)
@given(st.lists(outcomes, max_size=3, unique_by=lambda o: o.case.key), st.builds(Environment, texts, texts, texts, objects), objects)
def test_round_trip(saved: list[Outcome], environment: Environment, code: dict[str, Any]) -> None:
    text = dump(saved, environment, code, plan="demo")
    back = load(text, "x")
    expected = [dataclasses.replace(o, samples={n: rounded(n, v) for n, v in o.samples.items()}) for o in saved]
    assert list(back.outcomes) == sorted(expected, key=lambda o: (o.case.label, o.case.key))
    assert (back.environment, back.code, back.meta) == (environment, code, {"plan": "demo"})
    assert back.metrics == {name: METRICS[name].version for o in saved for name in o.samples}
    assert dump(back.outcomes, back.environment, back.code, **back.meta) == text, "the text is stable"


def test_speed_is_rounded_and_everything_else_is_exact() -> None:
    back = load(text_of(ok(samples={"latency": [1 / 3], "kl": [1 / 3], "kv_logical": [2.0**53 + 2]})), "x").outcomes[0]
    assert back.samples == {"latency": [0.333333333], "kl": [1 / 3], "kv_logical": [2.0**53 + 2]}


def edited(**fields: Any) -> str:
    return json.dumps({**json.loads(text_of()), **fields})


def edited_outcome(**fields: Any) -> str:
    """A file whose last outcome, one that was ok, has other fields."""
    good, *others = sorted(json.loads(text_of())["outcomes"], key=lambda outcome: outcome["status"] != "ok")
    return edited(outcomes=[*others, {**good, **fields}])


@pytest.mark.parametrize(("text", "match"), [
    *((text_of()[:end], "cannot be read") for end in range(0, len(text_of()) - 2, 499)),
    *((text, "is not an exchange file of cachemark") for text in ("[]", "{}", "3", '{"format": "asv"}', "null")),
    (edited(version=FORMAT_VERSION + 1), f"format {FORMAT_VERSION + 1}; .* up to {FORMAT_VERSION}.*Upgrade"),
    (edited(version="1"), "which is not a version"), (edited(outcomes=3), "has outcomes = 3: Input should be a valid array"),
    (edited(environment={}), r"lacks environment\.device\."),
    (edited(metrics={"latency": "one"}), r"has metrics\.latency = 'one': Input should be a valid integer"),
    (edited_outcome(samples={"latency": ["fast"]}), r"outcomes\.2\.samples\.latency\.0 = 'fast'"),
    (edited_outcome(samples={"latency": []}), r"outcomes\.2\.samples\.latency"),
    (edited_outcome(samples={"latency": [-1.0]}), r"outcomes\.2\.samples\.latency = \[-1.0\]: a value is negative"),
    (edited_outcome(samples={"latency": [1.0]}, judgement=""), "needs samples and a judgement"),
    (edited_outcome(status="oom"), "has a log and no values"), (edited_outcome(case={"model": "m"}), r"lacks outcomes\.2\.case\.weights"),
    (edited_outcome(samples=None), r"has outcomes\.2\.samples = None: "), (text_of().replace("0.25", "1e999"), "finite")])
def test_what_is_no_exchange_file_is_refused(text: str, match: str) -> None:
    with pytest.raises(BadBaseline, match=match) as caught:
        load(text, "here.json")
    assert "here.json" in str(caught.value)
    assert caught.value.remedy
