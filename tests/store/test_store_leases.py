"""Runs belong to processes: whether these have ended, on this machine or on another."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_examples import CODE, ENVIRONMENT, begin, ok

from cachemark.core import processes
from cachemark.core.processes import LAPSE, ended, holder
from cachemark.store import leases
from cachemark.store.db import Store


def begin_and_wait(path: Path, begun: Any) -> None:
    """Run in another process until it is killed."""
    with Store.open(path) as store, store.new_run("demo", {}, ENVIRONMENT, CODE) as run:
        store.save(run, ok(run))
        begun.set()
        signal.pause()


@pytest.fixture
def other(path: Path, store: Store) -> Any:
    """Start another process with the store's first run."""
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    process = context.Process(target=begin_and_wait, args=(path, begun))
    process.start()
    assert begun.wait(60)
    yield process
    process.kill()
    process.join()


def states(path: Path) -> list[str]:
    """Return the state of each run for a reader, the oldest first."""
    with Store.open(path, read_only=True) as store:
        assert store.run(1).state == store.runs()[-1].state
        return [run.state for run in reversed(store.runs())]


def test_a_killed_run_is_interrupted_for_whoever_looks(other: Any, path: Path, store: Store) -> None:
    assert states(path) == ["running"]
    other.kill()
    other.join()
    assert states(path) == ["interrupted"]
    with Store.open(path) as again:
        assert again.run(1).finished is None
        assert len(again.outcomes(1)) == 1
        again.finish_run(begin(again), "finished")
    assert states(path) == ["interrupted", "finished"]


def test_a_stopped_run_goes_on_running(other: Any, path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    os.kill(other.pid, signal.SIGSTOP)
    with store._writing() as session:
        session.connection().exec_driver_sql("UPDATE run SET beat = beat - 1e6")
    assert states(path) == ["running"]


# -- other machines ---------------------------------------------------------------------------------------------------
@pytest.fixture
def elsewhere(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Begin a run of a process on another machine; return a function that moves its last heartbeat into the past."""
    monkeypatch.setattr(leases, "holder", lambda: "node-7 0a1b2c3d/4026531836 17 99")
    begin(store)

    def quiet(seconds: float) -> None:
        with store._writing() as session:
            session.connection().exec_driver_sql(f"UPDATE run SET beat = beat - {seconds}")

    return quiet


def test_elsewhere_heartbeats_decide(elsewhere: Callable[[float], None], store: Store, path: Path) -> None:
    elsewhere(LAPSE - 20)
    assert states(path) == ["running"]
    elsewhere(40)
    assert states(path) == ["interrupted"]
    with store._writing() as session:
        leases.hold(session, 1)
    assert states(path) == ["running"], "it was out of reach"
    store.finish_run(1, "finished")
    with store._writing() as session:
        leases.hold(session, 1)  # a late heartbeat
    assert states(path) == ["finished"]


def test_heartbeats_are_sent_while_a_run_lasts(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them fails, and the others are sent."""
    beats: list[int] = []

    def hold(session: Any, run_id: int) -> None:
        beats.append(run_id)
        if len(beats) == 2:
            raise OSError("the disk is full")

    run = begin(store)
    monkeypatch.setattr(leases, "hold", hold)
    with store.alive(run, beat=0.001):
        while len(beats) < 4:
            os.sched_yield()
    assert set(beats) == {run}
    assert store.run(run).state == "running"


# -- names of processes -----------------------------------------------------------------------------------------------
def test_a_process_has_a_name_of_its_own() -> None:
    place, number, began = holder().rsplit(" ", 2)
    assert ended(holder()) is False
    assert ended(f"{place} {number} {int(began) + 1}") is True, "its number is another one's now"
    assert ended(f"{place}x {number} {began}") is None, "on another machine"
    for nonsense in ("", "here", f"{place} x {began}", f"{place} {10**30} {began}"):
        assert ended(nonsense) in (None, True)


def test_a_cloned_machine_is_another_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Name and namespace of its processes are the same; it was started on its own."""
    here = holder()
    monkeypatch.setattr(processes, "BOOT", tmp_path / "boot_id")
    (tmp_path / "boot_id").write_text("ffffffff-0000")
    assert ended(here) is None
    assert ended(holder()) is False


def test_a_process_that_waits_to_be_collected_has_ended() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    place, _, _ = holder().rsplit(" ", 2)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert ended(f"{place} {child} 1") is True
    os.waitpid(child, 0)
    assert ended(f"{place} {child} 1") is True
