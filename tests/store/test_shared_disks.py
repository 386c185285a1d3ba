"""Stores on disks of several machines, copies without their log, and logs that cannot be read."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from store_examples import begin, ok

import cachemark.store.database as database
from cachemark.core.errors import Infrastructure, NothingMeasured
from cachemark.store.db import Store


def journal(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.glusterfs", "fuse.sshfs", "9p"])
def test_network_file_systems_get_no_write_ahead_log(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, kinds = tmp_path / "s.sqlite", iter(["ext4", kind, "xfs"])
    monkeypatch.setattr(database, "file_system", lambda path: next(kinds))
    for mode in ("wal", "delete", "wal"):  # a store that is moved
        with Store.open(path) as store:
            store.save(begin(store), ok())
            assert journal(path) == mode
    with Store.open(path, read_only=True) as store:
        assert len(store.runs()) == 3


WRITES = """
import sys
import cachemark.store.database as database
database.file_system = lambda path: "nfs4"
from cachemark.store.db import Store
from store_examples import begin, ok
with Store.open(sys.argv[1]) as store:
    for _ in range(12):
        store.save(begin(store), ok())
"""


def test_two_writers_without_a_shared_log_lose_nothing(tmp_path: Path) -> None:
    """SQLite's files on one disk are all that they share: no -wal and no -shm."""
    path = tmp_path / "s.sqlite"
    writers = [subprocess.Popen([sys.executable, "-c", WRITES, str(path)], cwd=Path(__file__).parent) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert not list(tmp_path.glob("*-wal"))
    with Store.open(path, read_only=True) as store:
        assert (len(store.runs()), sum(len(store.outcomes(run.id)) for run in store.runs())) == (24, 24)


def test_the_type_of_a_file_system_is_that_of_its_mount(tmp_path: Path) -> None:
    for place in (tmp_path, Path("/proc/self/status"), Path("/dev/shm")):
        expected = subprocess.run(["stat", "-f", "-c", "%T", str(place)], capture_output=True, text=True, check=True).stdout.strip()
        kind = database.file_system(place)
        assert kind.rstrip("234") in expected or (kind, expected) == ("overlay", "overlayfs")
    assert not any(database.NETWORK.fullmatch(kind) for kind in ("ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "f2fs", ""))


@pytest.mark.parametrize("error", ["locking protocol", "(sqlite3.OperationalError) locking protocol"])
def test_a_file_system_without_locks_is_named(error: str) -> None:
    refused = database.bad_store(sqlite3.OperationalError(error), "/home/ada/s.sqlite")
    assert isinstance(refused, Infrastructure)
    assert "locks" in refused.message
    assert "db merge" in refused.remedy
    assert "PostgreSQL" in refused.remedy


def test_a_copy_without_its_log_is_told_from_an_empty_store(tmp_path: Path) -> None:
    with Store.open(tmp_path / "live.sqlite") as store:
        store.save(begin(store), ok())
        shutil.copy(tmp_path / "live.sqlite", tmp_path / "copy.sqlite")
        for name in ("both.sqlite", "both.sqlite-wal"):
            shutil.copy(tmp_path / name.replace("both", "live"), tmp_path / name)
    with Store.open(tmp_path / "copy.sqlite", read_only=True) as copy, pytest.raises(NothingMeasured, match="-wal was not copied"):
        copy.run()
    with Store.open(tmp_path / "both.sqlite", read_only=True) as store:
        assert store.run().id == 1


def test_a_log_in_a_read_only_folder_is_read(tmp_path: Path) -> None:
    """In a read-only folder SQLite cannot create the index of the log."""
    with Store.open(tmp_path / "live.sqlite") as store:
        store.save(begin(store), ok())
        for name in ("copy.sqlite", "copy.sqlite-wal"):
            shutil.copy(tmp_path / name.replace("copy", "live"), tmp_path / name)
    (tmp_path / "copy.sqlite-shm").mkdir()  # as if it could not be created
    with Store.open(tmp_path / "copy.sqlite", read_only=True) as store:
        assert len(store.outcomes(store.run().id)) == 1
