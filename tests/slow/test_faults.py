"""Real runs that are killed at random moments: completed cases are kept, and the same command finishes the plan."""

import collections
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from cachemark.store import rows
from cachemark.store.db import Store
from cachemark.workflows.run import PlanRunner
from support import fork_server, stages, stub

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]
KILLS = 200  # of real runs, and of their trials


def kept(stage: stages.Stage) -> set[str]:
    """Labels of all that is stored and complete, over all runs."""
    if not stage.store.exists():
        return set()
    return {label for run in range(1, len(stage.states()) + 1) for label, o in stage.outcomes(run).items() if o.ok}


def trials(run: int) -> list[int]:
    """The processes of trials of a run: its children that lead a session of their own."""
    results = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(parent) == run and session == folder.name and state != "Z":
                results.append(int(folder.name))
    return results


def check_stored(stage: stages.Stage) -> None:
    """The database is whole, no case has two complete outcomes, and every artifact can be read."""
    assert stage.whole()
    with contextlib.closing(sqlite3.connect(stage.store)) as connection:
        keys = [key for (key,) in connection.execute("SELECT case_key FROM outcome WHERE status = 'ok'")]
    assert len(keys) == len(set(keys))
    with Store.open(stage.store, create=False, read_only=True) as store:
        assert all(store.artifacts.read(file) for run in store.runs() for o in store.outcomes(run.id) for file in o.artifacts.values())


def killed(stage: stages.Stage, share: float, seconds: float, trial: bool) -> tuple[bool, float]:
    """Start a run and kill it, or its trial, ``share * seconds`` after its trial has begun. Returns whether that was before the end, and
    the seconds since the trial began. What was started ends with it."""
    process = stage.start()
    while process.poll() is None and not trials(process.pid):
        time.sleep(0.002)
    began = time.monotonic()
    try:
        while process.poll() is None and time.monotonic() < began + share * seconds:
            time.sleep(0.002)
        children = trials(process.pid)
        if process.poll() is not None or (trial and not children):
            return False, time.monotonic() - began
        for victim in children if trial else [process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        if trial:
            assert process.wait(timeout=stages.PATIENCE) == 0, "a trial that was killed is an outcome like any other"
        stages.until(lambda: all(map(stages.ended, children)), "the end of the trials")
        return True, time.monotonic() - began
    finally:
        process.kill()
        process.communicate()


def test_runs_and_trials_killed_again_and_again_lose_nothing_and_repeat_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moments are drawn from the time between the beginning of a trial and the end of a run. A store that is complete makes room for a
    new one. How far they came is printed."""
    monkeypatch.setattr(fork_server, "enabled", True)  # hundreds of runs: their processes are copies
    moments, kills, came = random.Random(0), 0, collections.Counter[tuple[bool, int]]()
    made = stages.stage(tmp_path / "stage", '"streaming", "window"')
    made.start().communicate(timeout=900)
    seconds = 1.0  # corrected by each run that ends before it is killed
    cases = len(made.outcomes())
    number, before = 0, kept(made)
    while kills < KILLS:
        if len(before) == cases:
            made, number, before = made.copy(tmp_path / f"stage-{number}"), number + 1, set()
            for file in made.folder.glob(f"{made.store.name}*"):
                shutil.rmtree(file) if file.is_dir() else file.unlink()
        trial = kills % 2 == 1
        done, lasted = killed(made, moments.random(), seconds, trial)
        if done:
            kills += 1
            came[trial, len(before)] += 1
        seconds = 1.02 * seconds if done else min(seconds, lasted)
        if made.store.exists() and made.store.stat().st_size:
            check_stored(made)
            assert before <= kept(made)
            before = kept(made)
    print(f"whether a trial was killed, complete cases before, and how often: {sorted(came.items())}")

    assert f"{len(before)} skipped" in stages.good(made.run())
    assert [o.ok for o in made.outcomes().values()] == [True] * cases
    assert made.states()[-1] == "finished"


def test_a_clock_that_jumps_backwards_changes_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest is what was saved last, whatever the time of day says."""
    times = iter(f"20{year}-01-01T00:00:00.000000+00:00" for year in range(99, 10, -1))
    monkeypatch.setattr(rows, "utc_now", lambda: next(times))
    monkeypatch.setattr("cachemark.store.db.utc_now", lambda: next(times))
    monkeypatch.setattr(time, "time", lambda: 1e9 - time.monotonic())
    with Store.open(tmp_path / "s.sqlite") as store:
        first, again = (PlanRunner(stub.tiny_plan(), store, stub.Stub()).measure() for _ in range(2))
        assert (len(first.ran), again.reused) == (12, 12)
        newest, oldest = store.runs()
        assert (newest.id, oldest.id) == (again.run_id, first.run_id)
        assert newest.started < oldest.started, "the clock did jump"
        assert newest.finished is not None
        assert store.run().id == newest.id
