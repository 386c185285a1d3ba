"""The store on a PostgreSQL server that several machines share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
import store_server
from click.testing import CliRunner
from sqlalchemy import create_engine, text
from store_examples import begin, case, failed, ok

from cachemark.cli import main
from cachemark.core.errors import BadStore
from cachemark.core.processes import LAPSE
from cachemark.store import leases
from cachemark.store.artifacts import MARK, VARIABLE
from cachemark.store.db import Store
from cachemark.store.merge import merge
from cachemark.store.rows import Verdict
from cachemark.store.upkeep import prune

pytestmark = pytest.mark.skipif(bool(why := store_server.missing()), reason=why)
NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with store_server.server() as made:
        yield made


@pytest.fixture
def url(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty database. No artifact must be written to the working directory."""
    name = f"results{next(NUMBERS)}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv(VARIABLE, raising=False)
    return server.replace("/postgres?", f"/{name}?")


@pytest.fixture
def server_store(url: str, tmp_path: Path) -> Iterator[Store]:
    with Store.open(url, artifacts=tmp_path / "artifacts") as opened:
        yield opened


def save_one(url: str) -> None:
    with Store.open(url) as store:
        store.save(begin(store), ok(1), {"tokens.bin": b"abc"})


def test_outcomes_come_back_as_they_were_saved(server_store: Store) -> None:
    store = server_store
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
    store.save_verdicts(run, [Verdict(case(1).key, "x", "latency", "equivalent")])
    assert len(store.verdicts(run)) == 1


def test_many_writers_at_once(server_store: Store, url: str) -> None:
    run = begin(server_store)

    def write(first: int) -> None:
        with Store.open(url, artifacts=server_store.artifacts.root) as own:
            for number in range(first, first + 5):
                own.save(run, ok(number % 7, result_key=f"w{number}"), {"x.bin": b"same for all"}, trial=f"t{first}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(100, 140, 5)))
    assert sorted(o.result_key for o in server_store.outcomes(run)) == sorted(f"w{n}" for n in range(100, 140))


def test_merging_from_a_file_and_pruning(server_store: Store, tmp_path: Path) -> None:
    with Store.open(tmp_path / "node.sqlite") as node:
        run = begin(node)
        node.save(run, ok(50), {"x.bin": b"node"}, trial="t")
        node.save(run, ok(51))
        assert merge(server_store, node).outcomes == 2
        assert merge(server_store, node).outcomes == 0
        assert server_store.outcomes(1) == node.outcomes(1)
    assert prune(server_store, 0, dry=False).outcomes == 2
    assert server_store.counts()["outcome"] == 0


def test_a_read_only_store_refuses_to_write(server_store: Store, url: str, tmp_path: Path) -> None:
    begin(server_store)
    with Store.open(url, read_only=True, artifacts=tmp_path) as reader:
        assert reader.runs()
        with pytest.raises(BadStore, match="cannot be written"):
            begin(reader)


# artifacts

def test_a_store_without_a_place_for_artifacts_is_refused(url: str) -> None:
    with pytest.raises(BadStore, match=rf"has no folder for artifacts.*db init --artifacts FOLDER, or set {VARIABLE}"):
        save_one(url)
    with pytest.raises(BadStore, match=r"is not a folder.*Mount it"):
        Store.open(url, artifacts="s3://bucket/artifacts")
    assert not list(Path().iterdir())


def test_the_place_is_named_once(url: str, tmp_path: Path) -> None:
    share = tmp_path / "share" / "artifacts"
    done = CliRunner().invoke(main, ["db", "init", "--artifacts", str(share)], env={"CACHEMARK_STORE": url})
    assert done.exit_code == 0, done.output
    save_one(url)
    with Store.open(url, read_only=True) as reader:
        (result,) = reader.outcomes(1)
        assert reader.artifacts.root == share
        assert reader.artifacts.read(result.artifacts["tokens.bin"]) == b"abc"
    assert not list(Path().iterdir())


def test_a_variable_names_it_too(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And another path of the same folder, as another machine sees it."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "share"))
    save_one(url)
    (tmp_path / "mounted").symlink_to(tmp_path / "share")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mounted"))
    with Store.open(url) as store:
        assert store.artifacts.root == tmp_path / "mounted"
    monkeypatch.delenv(VARIABLE)
    with Store.open(url) as store:
        assert store.artifacts.root == tmp_path / "share", "the first one is stored"


@pytest.mark.parametrize("mark", ["no folder", "", "0123\n"])
def test_a_machine_without_the_share_writes_nothing(mark: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share = tmp_path / "share"
    monkeypatch.setenv(VARIABLE, str(share))
    save_one(url)
    shutil.rmtree(share)
    if mark != "no folder":
        share.mkdir()
        (share / MARK).write_text(mark)
    with pytest.raises(BadStore, match=r"The artifacts of .* are in .*share; .*Mount the share"):
        save_one(url)
    with Store.open(url, read_only=True) as reader:
        assert len(reader.outcomes(1)) == 1, "results can be read"


def test_two_stores_do_not_share_a_folder(url: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruning one would delete files of the other."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "share"))
    save_one(url)
    with pytest.raises(BadStore, match="holds the artifacts of another store"):
        save_one(server)


def test_the_folder_moves_with_its_mark(url: str, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with Store.open(url, artifacts=old) as store:
        store.save(begin(store), ok(1), {"tokens.bin": b"abc"})
    with pytest.raises(BadStore, match="has no file"):
        Store.open(url, artifacts=new)
    shutil.move(old, new)
    done = CliRunner().invoke(main, ["db", "init", "--artifacts", str(new)], env={"CACHEMARK_STORE": url})
    assert done.exit_code == 0, done.output
    save_one(url)
    assert not old.exists()


# runs

def test_heartbeats_are_timed_by_the_servers_clock(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this machine is wrong, and the process is one of another machine."""
    monkeypatch.setattr("time.time", lambda: 86_400.0)
    monkeypatch.setattr(leases, "holder", lambda: "node-7 0a1b2c3d/4026531836 17 99")
    with Store.open(url, artifacts=tmp_path) as store, Store.open(url, read_only=True) as reader:
        run = begin(store)
        assert reader.run(run).state == "running"
        with store._writing() as session:
            session.execute(text(f"UPDATE run SET beat = beat - {LAPSE + 5}"))
        assert (reader.run(run).state, reader.runs()[0].state) == ("interrupted", "interrupted")
        Store.open(url, artifacts=tmp_path).close()
        with store._writing() as session:
            leases.hold(session, run)
        assert reader.run(run).state == "running", "it was only out of reach"
