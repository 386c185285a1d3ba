"""The store on a PostgreSQL server, which the test starts and ends: everything that it does on SQLite it does there."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import store_server
from store_examples import begin, case, failed, ok

from cachemark.core.errors import BadStore
from cachemark.store.db import Store
from cachemark.store.merge import merge
from cachemark.store.prune import prune, quantiles
from cachemark.store.rows import Verdict

pytestmark = pytest.mark.skipif(bool(why := store_server.missing()), reason=why)
LATENCIES = [float(i) for i in range(40)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with store_server.server() as made:
        yield made


@pytest.fixture(scope="module")
def store(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(url, artifacts=tmp_path_factory.mktemp("artifacts")) as opened:
        yield opened


def test_outcomes_come_back_as_they_were_saved(store: Store) -> None:
    run = begin(store)
    store.save(run, ok(1), {"tokens.bin": b"abc"}, trial="one")
    store.save(run, failed(2), trial="one")
    store.save(run, ok(3))
    store.save(run, ok(1, result_key="again"))
    outcomes = store.outcomes(run)
    assert [o.case.parameters["number"] for o in outcomes] == [1, 2, 3, 1]
    assert outcomes[0].samples == ok(1).samples
    assert store.artifacts.read(outcomes[0].artifacts["tokens.bin"]) == b"abc"
    assert store.find("skip3") == ok(3)
    assert store.reuse(begin(store), "skip3") == ok(3)
    assert store.seconds(case(1).key, "ci-cpu") == 0.0
    baseline = store.note_baseline("d" * 64, name="b", plan="demo", machine_class="m")
    store.save_verdicts(run, baseline, [Verdict(case(1).key, "x", "latency", "equivalent")])
    assert len(store.verdicts(run)) == 1


def test_many_writers_at_once(store: Store, url: str) -> None:
    run = begin(store)

    def write(first: int) -> None:
        with Store.open(url, artifacts=store.artifacts.root) as own:
            for number in range(first, first + 5):
                own.save(run, ok(number % 7, result_key=f"w{number}"), {"x.bin": b"same for all"}, trial=f"t{first}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(100, 140, 5)))
    assert sorted(o.result_key for o in store.outcomes(run)) == sorted(f"w{n}" for n in range(100, 140))


def test_a_lease_is_one_holders(store: Store) -> None:
    def take(number: int) -> str:
        return store.take_device("GPU-x", f"host{number} 1")

    with ThreadPoolExecutor(8) as pool:
        holders = set(pool.map(take, range(8)))
    assert len(holders) == 1
    (holder,) = holders
    store.give_device("GPU-x", holder)
    assert store.take_device("GPU-x", "another 1") == "another 1"


def test_merging_from_a_file_and_pruning(store: Store, tmp_path: Path) -> None:
    with Store.open(tmp_path / "node.sqlite") as node:
        node.save(begin(node), ok(50, samples={**ok(50).samples, "latency": LATENCIES}, result_key="from a node"), {"x.bin": b"node"})
        assert merge(store, node).outcomes == 1
        assert merge(store, node).outcomes == 0
    outcome = store.find("from a node")
    assert outcome is not None
    assert outcome.samples["latency"] == LATENCIES
    prune(store, 0, dry=False)
    assert store.find("from a node") is None, "it is measured again"
    (outcome,) = store.outcomes(store.run().id)
    assert outcome.samples["latency"] == quantiles(LATENCIES)
    assert outcome.mean("latency") == pytest.approx(19.5)


def test_a_server_that_is_not_there_is_named_without_its_password(url: str, tmp_path: Path) -> None:
    gone = url.replace("tester@", "tester:hunter2hunter2@").replace("host=/", "host=/nowhere/")
    with pytest.raises(BadStore) as caught:
        Store.open(gone, artifacts=tmp_path)
    assert "hunter2" not in str(caught.value)


def test_a_read_only_store_refuses_to_write(store: Store, url: str, tmp_path: Path) -> None:
    with Store.open(url, read_only=True, artifacts=tmp_path) as reader:
        assert reader.runs()
        with pytest.raises(BadStore, match="cannot be written"):
            begin(reader)
