"""Several machines with one PostgreSQL server: where the artifacts lie, and whose a run is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import store_server
from click.testing import CliRunner
from sqlalchemy import create_engine, text
from store_examples import begin, ok

from cachemark.cli import main
from cachemark.core.errors import BadStore
from cachemark.core.processes import LAPSE
from cachemark.store import leases
from cachemark.store.db import Store
from cachemark.store.places import MARK, VARIABLE

pytestmark = pytest.mark.skipif(bool(why := store_server.missing()), reason=why)
NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with store_server.server() as made:
        yield made


@pytest.fixture
def url(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database, and a working directory in which no artifact must end up."""
    name = f"results{next(NUMBERS)}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv(VARIABLE, raising=False)
    return server.replace("/postgres?", f"/{name}?")


def save_one(url: str) -> None:
    with Store.open(url) as store:
        store.save(begin(store), ok(1), {"tokens.bin": b"abc"})


# -- artifacts ----------------------------------------------------------------------------------------------------------
def test_a_store_without_a_place_for_artifacts_is_refused(url: str) -> None:
    with pytest.raises(BadStore, match=rf"has no place for artifacts.*db init --artifacts FOLDER, or set {VARIABLE}"):
        save_one(url)
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
    assert not list(Path().iterdir()), "nothing lies in the working directory"


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
        assert store.artifacts.root == tmp_path / "share", "the first one is remembered"


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "another store's"])
def test_a_machine_without_the_share_writes_nothing_beside_it(
    there: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    share = tmp_path / "share"
    monkeypatch.setenv(VARIABLE, str(share))
    save_one(url)
    shutil.rmtree(share)
    if there != "nothing":
        share.mkdir()
    if there == "another store's":
        (share / MARK).write_text("0123\n")
    with pytest.raises(BadStore, match=r"The artifacts of .* lie in .*share; .*Mount the share"):
        save_one(url)
    assert not (share / "parts").exists()
    with Store.open(url, read_only=True) as reader:
        assert len(reader.outcomes(1)) == 1, "figures are read all the same"


def test_two_stores_do_not_share_a_folder(url: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruning one would delete what the other names."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "share"))
    save_one(url)
    with pytest.raises(BadStore, match="holds the artifacts of another store"):
        save_one(server)


def test_the_folder_moves_with_its_mark(url: str, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with Store.open(url, artifacts=old) as store:
        store.save(begin(store), ok(1), {"tokens.bin": b"abc"})
        with pytest.raises(BadStore, match="has no file"):
            store.note_artifacts(new)
    shutil.move(old, new)
    done = CliRunner().invoke(main, ["db", "init", "--artifacts", str(new)], env={"CACHEMARK_STORE": url})
    assert done.exit_code == 0, done.output
    save_one(url)
    assert not old.exists()


def test_an_address_is_no_folder(url: str) -> None:
    with pytest.raises(BadStore, match=r"is no folder.*Mount it"):
        Store.open(url, artifacts="s3://bucket/artifacts")


# -- runs ---------------------------------------------------------------------------------------------------------------
def test_the_servers_clock_times_signs_of_life(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this machine is a day off; the process is one of another machine."""
    monkeypatch.setattr("time.time", lambda: 86_400.0)
    monkeypatch.setattr(leases, "holder", lambda: "node-7 0a1b2c3d/4026531836 17 99")
    with Store.open(url, artifacts=tmp_path) as store, Store.open(url, read_only=True) as reader:
        run = begin(store)
        assert reader.run(run).state == "running"
        with store._writing() as session:
            session.execute(text(f"UPDATE lease SET beat = beat - {LAPSE + 5}"))
        assert (reader.run(run).state, reader.runs()[0].state) == ("interrupted", "interrupted")
        with Store.open(url, artifacts=tmp_path) as third:
            assert third.counts()["lease"] == 0
        with store._writing() as session:
            leases.hold(session, run)
        assert reader.run(run).state == "running", "it was only out of reach"
