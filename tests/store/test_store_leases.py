"""A run belongs to a process: who opens the store finds out whether that has ended, on this machine or on another."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
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
    """Another process: a run that goes on until it is killed."""
    with Store.open(path) as store, store.new_run("demo", {}, ENVIRONMENT, CODE) as run:
        store.save(run, ok(run))
        begun.set()
        signal.pause()


@pytest.fixture
def other(path: Path, store: Store) -> Any:
    """Another process in the middle of the store's first run."""
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    process = context.Process(target=begin_and_wait, args=(path, begun))
    process.start()
    assert begun.wait(60)
    yield process
    process.kill()
    process.join()


def states(path: Path) -> list[str]:
    """State of each run for who only reads, the oldest first."""
    with Store.open(path, read_only=True) as store:
        assert store.run(1).state == store.runs()[-1].state
        return [run.state for run in reversed(store.runs())]


def stored(path: Path) -> list[str]:
    """The same as any other program reads it."""
    connection = sqlite3.connect(path)
    results = [state for (state,) in connection.execute("SELECT state FROM run ORDER BY id")]
    connection.close()
    return results


def test_a_killed_run_is_interrupted_for_whoever_looks(other: Any, path: Path, store: Store) -> None:
    assert states(path) == ["running"]
    other.kill()
    other.join()
    assert states(path) == ["interrupted"]
    assert stored(path) == ["running"], "who reads writes nothing"
    with Store.open(path) as again:
        assert again.run(1).finished is None
        assert again.counts()["lease"] == 0
        assert len(again.outcomes(1)) == 1
        again.finish_run(begin(again), "finished")
    assert stored(path) == states(path) == ["interrupted", "finished"]


def test_a_stopped_run_goes_on_running(other: Any, path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its signs of life are old, and it is there all the same."""
    os.kill(other.pid, signal.SIGSTOP)
    with store._writing() as session:
        session.connection().exec_driver_sql("UPDATE lease SET beat = beat - 1e6")
    Store.open(path).close()
    assert states(path) == ["running"]


def test_a_run_of_an_earlier_version_has_no_lease_and_has_ended(store: Store, path: Path) -> None:
    begin(store)
    with store._writing() as session:
        session.connection().exec_driver_sql("DELETE FROM lease")
    assert states(path) == ["interrupted"]


# -- other machines ---------------------------------------------------------------------------------------------------
@pytest.fixture
def elsewhere(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A run of a process on another machine; moves its last sign of life into the past."""
    monkeypatch.setattr(leases, "holder", lambda: "node-7 0a1b2c3d/4026531836 17 99")
    begin(store)

    def quiet(seconds: float) -> None:
        with store._writing() as session:
            session.connection().exec_driver_sql(f"UPDATE lease SET beat = beat - {seconds}")

    return quiet


def test_elsewhere_signs_of_life_tell(elsewhere: Callable[[float], None], path: Path) -> None:
    elsewhere(LAPSE - 20)
    assert states(path) == ["running"]
    elsewhere(40)
    assert states(path) == ["interrupted"]


def test_a_run_that_was_out_of_reach_runs_again_with_its_next_sign_of_life(
    elsewhere: Callable[[float], None], store: Store, path: Path,
) -> None:
    elsewhere(LAPSE + 20)
    Store.open(path).close()
    assert stored(path) == ["interrupted"]
    with store._writing() as session:
        leases.hold(session, 1)
    assert stored(path) == states(path) == ["running"]
    store.finish_run(1, "finished")
    with store._writing() as session:
        leases.hold(session, 1)  # a last beat that came late
    assert states(path) == ["finished"]


def test_signs_of_life_are_given_while_a_run_lasts(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them fails: the run itself will meet what is wrong."""
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
    count = len(beats)
    assert beats == [run] * count
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


def test_a_copy_of_a_store_knows_nothing_of_its_runs_future(other: Any, path: Path, tmp_path: Path) -> None:
    """The copy is looked at after the process has ended."""
    (tmp_path / "copy").mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_file():
            shutil.copy(file, tmp_path / "copy" / file.name)
    assert states(tmp_path / "copy" / path.name) == ["running"]
    other.kill()
    other.join()
    assert states(tmp_path / "copy" / path.name) == ["interrupted"]
