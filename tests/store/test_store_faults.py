"""Places and files that cannot be used as a store, faults and several processes while one is used, and processes that are killed."""

import errno
import importlib.util
import itertools
import multiprocessing
import os
import re
import resource
import signal
import sqlite3
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import event
from store_examples import begin, count_rows, die_at_step, ok, open_and_count, write_ten

import cachemark.store.artifacts as artifacts_module
import cachemark.store.database as engine_module
from cachemark import __version__
from cachemark.core.errors import BadStore
from cachemark.store.db import Store
from cachemark.store.schema import SCHEMA_VERSION
from cachemark.store.upkeep import backup, check, leftovers, prune
from support.stages import whole

DEEP = '{"a":' * 5_000 + "1" + "}" * 5_000


def refused(target: object, match: str, code: int = 2, **options: Any) -> BadStore:
    with pytest.raises(BadStore, match=match) as caught:
        Store.open(str(target), **options)
    assert caught.value.exit_code == code
    assert caught.value.remedy
    return caught.value


def make(path: Path) -> Path:
    with Store.open(path) as store:
        store.save(begin(store), ok())
    return path


@pytest.fixture
def made(path: Path) -> Path:
    return make(path)


def alter(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_places_that_are_no_store_and_empty_files_of_unusual_names_that_become_one(tmp_path: Path) -> None:
    make(tmp_path / "there.db")
    make(tmp_path / "cachemark.sqlite")
    refused(tmp_path / "no" / "results.db", "does not exist.*mkdir -p")
    refused(tmp_path / "there.db" / "results.db", "is not a directory")
    assert refused(tmp_path, "is a directory").remedy.endswith("cachemark.sqlite.")
    refused(tmp_path / "here.db", r"There is no store.*same folder: cachemark\.sqlite, there\.db\.", create=False)
    refused(tmp_path / "here.db", "There is no store", read_only=True)
    assert [(tmp_path / name).exists() for name in ("no", "here.db")] == [False, False]
    for name in ("with space.db", "per%20cent.db", "hash#.db", "query?mode=ro.db", "no_suffix"):
        (tmp_path / name).touch()
        refused(tmp_path / name, "is an empty database", read_only=True)
        make(tmp_path / name)
        with Store.open(f"sqlite:///{tmp_path / name}") as store:
            assert store.outcomes(1) == [ok()]


def test_read_only_store_reads_and_does_not_write(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = made.read_bytes()
    with Store.open(made, read_only=True) as store:
        assert store.outcomes(1) == [ok()]
        for write in (lambda: store.save(1, ok(2)), lambda: begin(store), lambda: store.reuse(1, "skip0")):
            with pytest.raises(BadStore, match="cannot be written"):
                write()
    assert made.read_bytes() == before
    real = engine_module._sqlite

    def on_read_only_medium(file: Path, query: str) -> Any:
        engine = real(file, query)
        if "immutable" not in query:
            @event.listens_for(engine, "connect", insert=True)
            def refuse(_connection: object, _record: object) -> None:
                raise sqlite3.OperationalError("unable to open database file")
        return engine

    monkeypatch.setattr(engine_module, "_sqlite", on_read_only_medium)
    with Store.open(made, read_only=True) as store:
        assert store.outcomes(1) == [ok()]
    made.with_name(made.name + "-wal").write_bytes(b"not folded in yet")
    refused(made, r"has a log \(.*-wal\).*Copy both files", read_only=True)


@pytest.mark.parametrize("change", [
    "UPDATE outcome SET facts = '{'", "UPDATE outcome SET facts = '[1]'", "UPDATE run SET plan_json = '7'",
    "UPDATE \"case\" SET body = '{}'", "UPDATE run SET started = x'fffe'", "UPDATE outcome SET trial = x'fffe'",
    f"UPDATE run SET plan_json = '{DEEP}'", "UPDATE outcome SET samples = replace(samples, '9999.0', 'NaN')",
    "UPDATE outcome SET samples = '{\"latency\":[0.0,0.0]}'", "UPDATE outcome SET samples = '{\"latency\":[1e-320]}'",
    "UPDATE outcome SET samples = replace(samples, '\"kl\"', '\"beauty\"')", "UPDATE outcome SET samples = '{\"latency\":[]}'",
    "UPDATE run SET verdicts = '{\"rows\": [1]}'", "PRAGMA ignore_check_constraints = ON; UPDATE outcome SET has_judgement = 0",
    "DELETE FROM run", "DELETE FROM outcome"])
def test_malformed_rows_are_refused_and_found_by_check_as_broken_constraints_and_references_are(made: Path, change: str) -> None:
    alter(made, *change.split("; "))
    with Store.open(made, read_only=True) as store:
        if not change.startswith(("PRAGMA", "DELETE")):
            with pytest.raises(BadStore, match=r"damaged.*cachemark db backup"):
                store.run(1), store.outcomes(1), store.verdicts(1)
        assert check(store)


def test_check_compares_artifacts_with_their_names(store: Store) -> None:
    number = store.save(begin(store), ok(1), {"grid.png": b"png"})
    assert (number, check(store)) == (1, [])
    (file,) = store.outcomes(1)[0].artifacts.values()
    store.artifacts.path(file).write_bytes(b"jpg")
    assert check(store, quick=True) == []
    assert check(store) == [f"Artifact {file} is damaged: its content does not match its name."]
    store.artifacts.path(file).unlink()
    assert check(store) == check(store, quick=True) == [f"artifact {file}: is missing from {store.artifacts.root}"]


def test_repair_deletes_what_killed_commands_left_and_nothing_else(store: Store) -> None:
    store.save(begin(store), ok(1), {"grid.png": b"png"})
    root = store.artifacts.root
    left = [root / store.artifacts.put("a.png", b"of a save that was killed before its commit"), root / "ab" / ".0123.part"]
    (root / "notes.txt").write_text("of a person")
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert leftovers(store, delete=True) == [], "a save that is under way may own them"
    for path in root.rglob("*"):
        os.utime(path, (0, 0))
    assert sorted(leftovers(store)) == sorted(leftovers(store, delete=True)) == sorted(left)
    assert (leftovers(store), check(store), (root / "notes.txt").exists()) == ([], [], True)
    os.utime(root / store.artifacts.put("a.png", b"of a run that a killed prune deleted"), (0, 0))
    assert [prune(store, dry=dry).files for dry in (True, False, True)] == [1, 1, 0]


def test_a_prune_beside_a_save_of_equal_content_loses_no_artifact(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prune deletes the file of an old night after the save has found it there, and before the save's rows are committed."""
    store.save(begin(store), ok(1), {"tokens.bin": b"equal every night"})
    put = artifacts_module.Artifacts.put

    def put_then_prune(artifacts: artifacts_module.Artifacts, name: str, data: bytes) -> str:
        file = put(artifacts, name, data)
        monkeypatch.setattr(artifacts_module.Artifacts, "put", put)
        with Store.open(path) as other:
            assert prune(other, 0, dry=False).files == 1
        return file

    run = begin(store)
    store.keep(run)
    monkeypatch.setattr(artifacts_module.Artifacts, "put", put_then_prune)
    store.save(run, ok(1), {"tokens.bin": b"equal every night"})
    assert check(store) == []


def test_a_backup_is_whole_or_absent(store: Store, tmp_path: Path) -> None:
    store.save(begin(store), ok(1))
    (folder := tmp_path / "backups").mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # Python's default, which a library may have changed
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, limits[1]))
    try:
        with pytest.raises(BadStore, match=r"copy\.db"):
            backup(store, folder / "copy.db")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert list(folder.iterdir()) == []
    (folder / ".copy.db.part").write_bytes(b"of a killed backup")
    backup(store, folder / "copy.db")
    assert [file.name for file in folder.iterdir()] == ["copy.db"]


def test_a_store_in_a_read_only_folder_is_checked_and_backed_up(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the answer is imitated."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with Store.open(made, read_only=True) as store:
        assert check(store) == []
        backup(store, tmp_path / "copy.db")
        with pytest.raises(BadStore, match="exists already"):
            backup(store, tmp_path / "copy.db")
    with Store.open(tmp_path / "copy.db", read_only=True) as copy:
        assert (check(copy), copy.outcomes(1)) == ([], [ok()])


@pytest.mark.parametrize(("content", "change", "words"), [
    *((content, "", "not an SQLite database, or a damaged one") for content in (
        b"hello, this is not a database\n" * 200, b"\x89PNG", b"SQLite format 3\0" + b"\xff" * 4000)),
    (b"", "CREATE TABLE recipes (name TEXT)", "another program .*recipes"),
    *((None, f"UPDATE {engine_module.VERSION_TABLE} SET version_num = '{version}'",
       rf"schema '{version}'.*{re.escape(__version__)} reads and writes schema {SCHEMA_VERSION}") for version in ("0003", "99", "head")),
    (None, f"INSERT INTO {engine_module.VERSION_TABLE} VALUES ('4')", "schema '5, 4'")])
def test_a_file_of_something_else_or_of_another_schema_is_left_alone(path: Path, content: bytes | None, change: str, words: str) -> None:
    make(path) if content is None else path.write_bytes(content)
    alter(path, *filter(None, [change]))
    before = path.read_bytes()
    for read_only in (False, True):
        refused(path, words, read_only=read_only)
    assert path.read_bytes() == before


def test_full_disk_while_saving(store: Store) -> None:
    run = begin(store)
    store.save(run, ok(1))
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(BadStore, match=r"disk is full: this was not saved.*results.db.*Free some space") as caught:
        store.save(run, ok(2, log="x" * 100_000))
    assert (caught.value.exit_code, store.outcomes(run), count_rows(store)["case"]) == (5, [ok(1)], 1)


@pytest.mark.parametrize(("number", "match"), [
    (errno.ENOSPC, "disk is full"), (errno.EACCES, "cannot be written"), (errno.EIO, "reports an I/O error")])
def test_artifact_that_cannot_be_written(store: Store, monkeypatch: pytest.MonkeyPatch, number: int, match: str) -> None:
    run = begin(store)
    monkeypatch.setattr(artifacts_module.os, "fsync", Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(BadStore, match=match):
        store.save(run, ok(1), {"grid.png": b"png"})
    monkeypatch.undo()
    assert store.outcomes(run) == []
    assert not list(store.artifacts.path("ab/" + "ab" * 32).parents[1].rglob("*.part"))


def test_a_killed_save_leaves_no_part_of_an_artifact(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))
    except (OSError, AttributeError):
        pytest.skip("this file system has no files without names")
    monkeypatch.setattr(artifacts_module.os, "link", lambda *where, **options: os._exit(9))
    if not (child := os.fork()):
        store.artifacts.put("grid.png", b"png")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not [path for path in store.artifacts.root.rglob("*") if path.is_file()]


def test_a_trigger_and_another_process_that_refuse_a_write_are_named(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "BUSY_SECONDS", 0.05)
    alter(made, "CREATE TRIGGER strict BEFORE INSERT ON run BEGIN SELECT RAISE(ABORT, 'not today'); END")
    other = sqlite3.connect(made, isolation_level=None)
    with Store.open(made) as store:
        with pytest.raises(BadStore, match=r"a trigger refuses it \(not today\)"):
            begin(store)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BadStore, match=r"Another process kept .* locked for more than 60 s\.") as caught:
            begin(store)
        assert caught.value.exit_code == 5
        assert len(store.outcomes(1)) == 1, "readers do not wait"
    other.close()


def test_other_servers_and_a_missing_driver_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refused("mysql://u:secret@h/db", "No store can be kept in 'mysql'")
    refused("sqlite://", "No store can be kept in 'sqlite'")
    if importlib.util.find_spec("psycopg"):
        assert "secret" not in str(refused("postgresql://me:secret@127.0.0.1:1/results", "127.0.0.1:1/results cannot be used", code=5))
    monkeypatch.setattr(engine_module.importlib.util, "find_spec", lambda _name: None)
    refused("postgresql+psycopg://me:secret@host/results", "psycopg.*not installed.*pip install")


pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork servers and SIGKILL")


@pytest.fixture(scope="module")
def processes() -> Any:
    """Children of a server that has imported the store already: they start in milliseconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cachemark.store.db", "cachemark.metrics.registry", "hypothesis.strategies"])
    return context


def test_several_processes_create_one_database_and_four_writers_lose_nothing(path: Path, processes: Any) -> None:
    with processes.Pool(4) as pool:
        assert sorted(pool.map(open_and_count, [path] * 8, chunksize=1)) == list(range(1, 9))
    writers = [processes.Process(target=write_ten, args=(path, first)) for first in (0, 10, 20, 30)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [w.exitcode for w in writers] == [0] * 4
    assert whole(path)
    with Store.open(path) as store:
        result = {o.case.parameters["number"]: o for o in store.outcomes(1)}
        assert sorted(result) == list(range(40))
        for number, outcome in result.items():
            assert outcome.samples == ok(number).samples
            assert store.artifacts.read(outcome.artifacts["tokens.bin"]) == bytes([number])


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
    assert whole(path)
