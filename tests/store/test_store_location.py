"""Locations of stores: what they name, and that no message shows a password."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import URL

from cachemark.core.errors import BadStore
from cachemark.store.db import Store
from cachemark.store.location import has_password, located, shown

SECRET = "s3cr3tPW"
WITH_PASSWORD = [
    *(f"postgresql://bench:{SECRET}{rest}" for rest in ("@host/res", "/x@host/res", "?x@host/res", "#x@host:1/res", "[x@host/res")),
    f"postgres://bench@host/res?sslmode=require&password={SECRET}", f"postgresql://host/res?Password={SECRET}&sslpassword={SECRET}",
]
NOT_A_URL = [
    *(f"postgresql://bench:{SECRET}{rest}" for rest in ("/@:x@127.0.0.1/res", "@host:port/res", "@[::1/res", "@x@host/res", "/@x/y@h/r")),
    f"postgresql:/bench:{SECRET}@host/res", f"bench:{SECRET}@host/res", f"postgresql+psycopg:/bench:{SECRET}@host/res",
    f"//bench:{SECRET}@host/res", f"postgresql//bench:{SECRET}@host/res", f"oracle://bench:{SECRET}@@host/res",
]


@pytest.mark.parametrize("text", WITH_PASSWORD)
def test_a_password_is_seen_and_hidden(text: str) -> None:
    location = located(text)
    assert has_password(location)
    assert SECRET not in shown(location)


@pytest.mark.parametrize("text", NOT_A_URL)
@pytest.mark.parametrize("kind", [str, Path])
def test_a_location_that_cannot_be_parsed_is_not_shown(text: str, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadStore) as refusal:
        Store.open(kind(text))
    assert SECRET not in f"{refusal.value} {refusal.value.remedy}"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["results.sqlite", "/data/night:1@gpu.sqlite", "./me:you@host", "postgres/results.sqlite", "a b/@x"])
def test_a_path_is_a_path(text: str) -> None:
    assert located(text) == located(f"sqlite:///{text}") == Path(text)


def test_a_file_may_hold_the_location(tmp_path: Path) -> None:
    file = tmp_path / "results.url"
    file.write_text(f"\n postgresql://bench:{SECRET}@host/res \n")
    location = located(f"@{file}")
    assert isinstance(location, URL)
    assert location.password == SECRET
    file.write_text(str(tmp_path / "results.sqlite"))
    with Store.open(f"@{file}") as store:
        assert store.file == tmp_path / "results.sqlite"


@pytest.mark.parametrize("text", ["", "\n", f"{SECRET}\n{SECRET}", f"@{SECRET}", SECRET * 1_000])
def test_a_file_without_one_location_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "results.url"
    file.write_text(text)
    with pytest.raises(BadStore, match="one location") as refusal:
        located(f"@{file}")
    assert SECRET not in f"{refusal.value} {refusal.value.remedy}"


@pytest.mark.parametrize("make", [lambda path: None, os.mkfifo, Path.mkdir], ids=["missing", "pipe", "folder"])
def test_a_location_is_read_from_ordinary_files_alone(make: object, tmp_path: Path) -> None:
    make(tmp_path / "results.url")  # type: ignore[operator]
    with pytest.raises(BadStore, match="not a readable file"):
        located(f"@{tmp_path / 'results.url'}")
