"""Heartbeats of runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from store_examples import begin

from cachemark.store import leases
from cachemark.store.db import Store
from cachemark.store.leases import LAPSE


def states(path: Path) -> list[str]:
    """Return the state of each run for a reader, the oldest first."""
    with Store.open(path, read_only=True) as store:
        assert store.run(1).state == store.runs()[-1].state
        return [run.state for run in reversed(store.runs())]


def silent(store: Store, seconds: float) -> None:
    """Move the last heartbeat of the run into the past."""
    with store._writing() as session:
        session.connection().exec_driver_sql(f"UPDATE run SET beat = beat - {seconds}")


def test_a_run_without_heartbeats_is_interrupted(store: Store, path: Path) -> None:
    begin(store)
    silent(store, LAPSE - 20)
    assert states(path) == ["running"]
    silent(store, 40)
    assert states(path) == ["interrupted"]
    with store._writing() as session:
        leases.beat(session, 1)
    assert states(path) == ["running"], "it was out of reach"
    store.finish_run(1, "finished")
    with store._writing() as session:
        leases.beat(session, 1)  # a late heartbeat
    assert states(path) == ["finished"]


def test_heartbeats_are_sent_while_a_run_lasts(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them fails, and the others are sent."""
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
    assert set(beats) == {run}
    assert store.run(run).state == "running"
