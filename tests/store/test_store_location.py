"""Locations of stores: what they name, and that no message shows a password."""

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from store_examples import begin, ok

import cachemark.store.database as database
from cachemark.core.errors import BadStore, Infrastructure, NothingMeasured
from cachemark.store.db import Store
from cachemark.store.location import has_password, located, shown

SECRET = "s3cr3tPW"
WITH_PASSWORD = [
    *(f"postgresql://bench:{SECRET}{rest}" for rest in ("@host/res", "/x@host/res", "?x@host/res", "#x@host:1/res", "[x@host/res")),
    f"postgresql://host/res?oauth_client_secret={SECRET}", f"postgresql://host/res?scram_client_key={SECRET}",
    f"postgres://bench@host/res?sslmode=require&password={SECRET}", f"postgresql://host/res?Password={SECRET}&sslpassword={SECRET}",
    f"postgresql://h/db?options=-cpassword={SECRET}", f"postgresql://h/db?options=-c%20x.token%3D{SECRET}&options=a", f"postgresql://h/db?pwd={SECRET}",
    f"postgresql://h/db?host=bench:{SECRET}@other", f"postgresql://h/db?dbname=postgresql://x/y%3F{SECRET}", f"postgresql://h/db?passwd={SECRET}",
    f"sqlite://bench:{SECRET}@host/res",
]
NOT_A_URL = [
    *(f"postgresql://bench:{SECRET}{rest}" for rest in ("/@:x@127.0.0.1/res", "@host:port/res", "@[::1/res", "@x@host/res", "/@x/y@h/r")),
    f"postgresql:/bench:{SECRET}@host/res", f"bench:{SECRET}@host/res", f"postgresql+psycopg:/bench:{SECRET}@host/res",
    f"host=h user=bench password={SECRET}", f"password = {SECRET}", f"host:5432:res:bench:{SECRET}", f"*:*:*:bench:{SECRET}",
    f"//bench:{SECRET}@host/res", f"postgresql//bench:{SECRET}@host/res", f"oracle://bench:{SECRET}@@host/res",
    f"sqlite:////bench:{SECRET}@host/x", f"sqlite:////bench:{SECRET}/y@host/x", f"sqlite:///bench:{SECRET}@host/x",
    f"postgresql://h/db&password={SECRET}", f"postgresql://h/db#password={SECRET}", f"postgresql://bench%3A{SECRET}@host/res",
    f"sqlite:////tmp/x.sqlite?password={SECRET}", f"x.sqlite?pwd={SECRET}&token={SECRET}",
]


@pytest.mark.parametrize("kind", [str, Path])
def test_a_location_that_cannot_be_parsed_is_not_shown(kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in NOT_A_URL:
        with pytest.raises(BadStore) as refusal:
            Store.open(kind(text))
        assert SECRET not in f"{refusal.value} {refusal.value.remedy}"
    assert not list(tmp_path.iterdir())


def test_a_path_is_a_path_a_number_none_and_a_password_is_hidden() -> None:
    for text in ("results.sqlite", "/data/night:1@gpu.sqlite", "./me:you@host", "postgres/results.sqlite", "a b/@x", "./x?password=1",
                 "/tmp/a:b.sqlite", "pass/night.sqlite", "compass=1.sqlite"):
        assert located(text) == located(f"sqlite:///{text}") == Path(text)
    with pytest.raises(BadStore, match="3 is not a location"):
        located(3)  # type: ignore[arg-type]
    for location in map(located, WITH_PASSWORD):
        assert has_password(location)
        assert SECRET not in shown(location)


def test_a_file_may_hold_one_location(tmp_path: Path) -> None:
    file = tmp_path / "results.url"
    file.write_text(f"\n postgresql://bench:{SECRET}@host/res \n")
    assert located(f"@{file}").password == SECRET
    file.write_text(str(tmp_path / "results.sqlite"))
    with Store.open(f"@{file}") as store:
        assert store.file == tmp_path / "results.sqlite"
    for text in ("", "\n", f"{SECRET}\n{SECRET}", f"@{SECRET}", SECRET * 1_000):
        file.write_text(text)
        with pytest.raises(BadStore, match="one location") as refusal:
            located(f"@{file}")
        assert SECRET not in f"{refusal.value} {refusal.value.remedy}"
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe", "."):
        with pytest.raises(BadStore, match="not a readable file"):
            located(f"@{tmp_path / name}")


def test_file_systems_are_known_and_those_of_networks_get_no_write_ahead_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (tmp_path, Path("/proc/self/status"), Path("/dev/shm")):
        expected = subprocess.run(["stat", "-f", "-c", "%T", str(place)], capture_output=True, text=True, check=True).stdout.strip()
        kind = database.file_system(place)
        assert kind.rstrip("234") in expected or (kind, expected) == ("overlay", "overlayfs")
    shared = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.glusterfs", "fuse.sshfs", "9p")
    assert all(map(database.NETWORK.fullmatch, shared))
    assert not any(map(database.NETWORK.fullmatch, ("ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "f2fs", "")))
    path, kinds = tmp_path / "s.sqlite", iter(["ext4", "nfs4", "xfs"])
    monkeypatch.setattr(database, "file_system", lambda path: next(kinds))
    for mode in ("wal", "delete", "wal"):  # a store that is moved
        with Store.open(path) as store:
            store.save(begin(store), ok())
            with closing(sqlite3.connect(path)) as connection:
                assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)
    with Store.open(path, read_only=True) as store:
        assert len(store.runs()) == 3
    refused = database.bad_store(sqlite3.OperationalError("locking protocol"), "/home/ada/s.sqlite")
    assert isinstance(refused, Infrastructure)
    assert ("locks" in refused.message, "db merge" in refused.remedy) == (True, True)


def test_a_copy_without_its_log_is_told_from_an_empty_store_and_one_with_it_is_read_also_in_a_read_only_folder(tmp_path: Path) -> None:
    """In a read-only folder SQLite cannot create the index of the log."""
    with Store.open(tmp_path / "live.sqlite") as store:
        store.save(begin(store), ok())
        for name in ("copy.sqlite", "both.sqlite", "both.sqlite-wal", "locked.sqlite", "locked.sqlite-wal"):
            shutil.copy(tmp_path / f"live.{name.partition('.')[2]}", tmp_path / name)
    with Store.open(tmp_path / "copy.sqlite", read_only=True) as copy, pytest.raises(NothingMeasured, match="-wal was not copied"):
        copy.run()
    (tmp_path / "locked.sqlite-shm").mkdir()  # as if it could not be created
    for name in ("both.sqlite", "locked.sqlite"):
        with Store.open(tmp_path / name, read_only=True) as store:
            assert len(store.outcomes(store.run().id)) == 1
