"""Several processes at once, and processes that are killed in the middle of a write."""

import itertools
import multiprocessing
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from store_examples import begin, count_rows, die_at_step, ok, open_and_count, write_ten

from cachemark.store.db import Store

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork servers and SIGKILL")


@pytest.fixture(scope="module")
def processes() -> Any:
    """Children of a server that has imported the store already: they start in milliseconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cachemark.store.db"])
    return context


def check_integrity(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_four_writers_lose_nothing(path: Path, processes: Any) -> None:
    with Store.open(path) as store:
        begin(store)
    writers = [processes.Process(target=write_ten, args=(path, first)) for first in (0, 10, 20, 30)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [w.exitcode for w in writers] == [0] * 4
    check_integrity(path)
    with Store.open(path) as store:
        result = {o.case.parameters["number"]: o for o in store.outcomes(1)}
        assert sorted(result) == list(range(40))
        for number, outcome in result.items():
            assert outcome.samples == ok(number).samples
            assert store.artifacts.read(outcome.artifacts["tokens.bin"]) == bytes([number])


def test_several_processes_create_one_database(path: Path, processes: Any) -> None:
    with processes.Pool(4) as pool:
        assert sorted(pool.map(open_and_count, [path] * 8, chunksize=1)) == list(range(1, 9))
    check_integrity(path)


def test_death_at_every_statement_of_a_save(path: Path, processes: Any) -> None:
    """Until the commit has returned the outcome is wholly absent, afterwards it is wholly there."""
    Store.open(path).close()
    for step in itertools.count():
        writer = processes.Process(target=die_at_step, args=(path, step))
        writer.start()
        writer.join()
        with Store.open(path) as store:
            newest, counts = store.run().id, count_rows(store)
            saved = store.outcomes(newest)
        if writer.exitcode == 0:
            break
        assert writer.exitcode == -signal.SIGKILL
        assert [o.case.parameters["number"] for o in saved] == [0]
        assert counts["outcome"] == counts["membership"] == newest
        assert counts["case"] == 1
    assert [o.case.parameters["number"] for o in saved] == [0, 1]
    assert step > 5, "the steps were really counted"
    check_integrity(path)
