"""The store on a PostgreSQL server that several machines share."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from store_examples import begin, case, count_rows, failed, ok

from cachemark.core.errors import BadStore
from cachemark.store import leases
from cachemark.store.artifacts import VARIABLE
from cachemark.store.db import Store
from cachemark.store.merge import merge
from cachemark.store.rows import Verdict
from cachemark.store.upkeep import check, prune

pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'cachemark[postgres]'")
FOLDERS = [*(Path(program).parent for program in filter(None, [shutil.which("initdb")])),
           *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
PROGRAMS = next((f for f in FOLDERS if all((f / name).exists() for name in ("initdb", "pg_ctl", "postgres"))), Path())
pytestmark = pytest.mark.skipif(Path() == PROGRAMS, reason="PostgreSQL's initdb, pg_ctl and postgres are not on this machine")
NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of an empty database. The server refuses to run as root, so root starts it as nobody."""
    folder = Path(tempfile.mkdtemp(prefix="cm-pg-"))  # a short path: that of a socket has at most 107 bytes
    data, log = folder / "data", folder / "log"
    user = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    if user:
        shutil.chown(folder, "nobody")

    def call(name: str, *arguments: object) -> None:
        environment = {**os.environ, "LC_ALL": "C", "HOME": str(folder)}
        command = [str(PROGRAMS / name), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False, **user)  # type: ignore
        output = log.read_text() if log.exists() else ""
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}{output}"

    try:
        call("initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync")
        call("pg_ctl", "-D", data, "-w", "-l", log, "-o", f"-c listen_addresses='' -k {folder} -c max_connections=64", "start")
        try:
            yield f"postgresql+psycopg://tester@/postgres?host={folder}"
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def url(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty database with a shared folder. No artifact must be written to the working directory."""
    name = f"results{next(NUMBERS)}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "share").mkdir()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "share"))
    return server.replace("/postgres?", f"/{name}?")


@pytest.fixture
def server_store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


def save_one(url: str) -> None:
    with Store.open(url) as store:
        store.save(begin(store), ok(1), {"tokens.bin": b"abc"})


def test_outcomes_come_back_as_they_were_saved_are_merged_and_pruned(server_store: Store, tmp_path: Path) -> None:
    store = server_store
    run = begin(store)
    store.save(run, ok(1), {"tokens.bin": b"abc"}, trial="one")
    store.save(run, failed(2), trial="one")
    store.save(run, ok(3))
    store.save(run, ok(1, result_key="again"))
    outcomes = store.outcomes(run)
    assert ([o.case.parameters["number"] for o in outcomes], outcomes[0].samples) == ([1, 2, 3, 1], ok(1).samples)
    assert (store.artifacts.read(outcomes[0].artifacts["tokens.bin"]), store.find("skip3")) == (b"abc", ok(3))
    assert (store.reuse(begin(store), "skip3"), store.seconds(case(1).key, "ci-cpu")) == (ok(3), 0.0)
    store.save_verdicts(run, [Verdict(case(1).key, "x", "latency", "equivalent")])
    assert len(store.verdicts(run)) == 1
    with Store.open(tmp_path / "node.sqlite") as node:
        node.save(begin(node), ok(50), {"x.bin": b"node"}, trial="t")
        assert [merge(store, node).outcomes for _ in range(2)] == [1, 0]
        assert store.outcomes(3) == node.outcomes(1)
    assert prune(store, 0, dry=False).outcomes == 5
    assert count_rows(store)["outcome"] == 0


@pytest.mark.parametrize("folder", ["", "share/not-mounted", "file", "s3://bucket/artifacts"])
def test_a_writer_without_the_shared_folder_is_rejected(folder: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").touch()
    monkeypatch.setenv(VARIABLE, folder)
    with pytest.raises(BadStore, match=rf"{VARIABLE} is .* set {VARIABLE}"):
        save_one(url)
    assert [path.name for path in Path().iterdir()] == ["file"]


def test_a_reader_without_the_shared_folder_reports_missing_artifacts(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save_one(url)
    monkeypatch.delenv(VARIABLE)
    with Store.open(url, read_only=True) as reader:
        file = reader.outcomes(1)[0].artifacts["tokens.bin"]
        with pytest.raises(BadStore, match=rf"{file} cannot be read.*\${VARIABLE}/"):
            reader.artifacts.read(file)
        (problem,) = check(reader)
    assert (file in problem, f"${VARIABLE}/" in problem) == (True, True)


def test_a_share_that_is_lost_while_writing_is_an_error(server_store: Store, tmp_path: Path) -> None:
    run = begin(server_store)
    (tmp_path / "share").rename(tmp_path / "elsewhere")
    with pytest.raises(BadStore, match="No such file"):
        server_store.save(run, ok(1), {"tokens.bin": b"abc"})
    assert server_store.outcomes(run) == []
    assert not (tmp_path / "share").exists()


def test_heartbeats_are_timed_by_the_servers_clock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this machine is wrong."""
    monkeypatch.setattr("time.time", lambda: 86_400.0)
    with Store.open(url) as store, Store.open(url, read_only=True) as reader:
        run = begin(store)
        assert reader.run(run).state == "running"
        with store._writing() as session:
            session.execute(text(f"UPDATE run SET beat = beat - {leases.LAPSE + 5}"))
        assert (reader.run(run).state, reader.runs()[0].state) == ("interrupted", "interrupted")
        with store._writing() as session:
            leases.beat(session, run)
        assert reader.run(run).state == "running", "it was only out of reach"
