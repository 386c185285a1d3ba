"""Each column, and each key of its JSON, of a measured store edited 300 times: a command that reads it has a documented exit code."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cachemark.cli import main
from cachemark.core.spec import Case
from support.stages import Stage

from .ground import BASELINE, STORE, furnish

SEED, EDITS, DOCUMENTED = 20261128, 300, (0, 1, 2, 3, 4, 5)
STORED = ("--store", STORE)
COMMANDS = (("report", "page.html", *STORED), ("check", *STORED, "--baseline", BASELINE), ("db", "merge", STORE, "--store", "new.sqlite"),
            ("show", *STORED), ("export", "csv", *STORED), ("list", "runs", *STORED), ("db", "check", *STORED),
            ("export", "junit", *STORED))
COLUMNS: tuple[Any, ...] = (b"\xff\xfe", "x", "", None, -1, 10**18, 1e308, "{}", "[1]")
VALUES: tuple[Any, ...] = (5, [1], {"a": 1}, None, "x", "", True, -1, 1e308, 10**400, [[]], "\ud800", {"": {}})
Place = tuple[str, str, int, tuple[Any, ...]]  # table, column, row, path of keys


def keys(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value below a value: of all keys, and of the first item of a list."""
    inside = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from keys(item, (*path, key))


def places(database: Path) -> list[Place]:
    """Return every column and every key of JSON; of rows that differ in no key, one."""
    different = dict[tuple[str, str, tuple[Any, ...]], int]()
    with closing(sqlite3.connect(database)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")]
        for table in tables:
            rows = connection.execute(f'SELECT rowid, * FROM "{table}"')
            names = [column[0] for column in rows.description][1:]
            for number, *values in rows.fetchall():
                for name, value in zip(names, values, strict=True):
                    parsed = json.loads(value) if isinstance(value, str) and value.startswith("{") else None
                    for path in ((), *keys(parsed)):
                        different.setdefault((table, name, path), number)
    return [(table, column, row, path) for (table, column, path), row in different.items()]


def edit(database: Path, place: Place, value: Any) -> None:
    """Replace a value, unchecked by the database."""
    table, column, row, path = place
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        if path:
            (text,) = connection.execute(f'SELECT "{column}" FROM "{table}" WHERE rowid = ?', [row]).fetchone()
            content = inner = json.loads(text)
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            value = json.dumps(content)
        with suppress(sqlite3.IntegrityError):  # NOT NULL, or a key that exists
            connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', [value, row])


def test_no_edit_of_a_store_is_an_internal_error(measured: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = furnish(measured, tmp_path / "here")
    monkeypatch.chdir(here)
    intact, draws = tmp_path / "intact.sqlite", random.Random(SEED)
    shutil.copy(STORE, intact)
    every = places(intact)
    draws.shuffle(every)
    bad = []
    for place in itertools.islice(itertools.cycle(every), EDITS):
        value, command = draws.choice(VALUES if place[3] else COLUMNS), draws.choice(COMMANDS)
        shutil.copy(intact, STORE)
        for other in ("new.sqlite", "page.html"):
            Path(other).unlink(missing_ok=True)
        edit(Path(STORE), place, value)
        done = CliRunner().invoke(main, command)
        if done.exit_code not in DOCUMENTED:
            bad.append((place, value, command, done.exit_code, done.output[-300:]))
    assert not bad, "\n".join(str(each)[:300] + str(each)[-500:] for each in bad)
    assert len(every) < EDITS, "some places are never edited"


SECRETS = (" in /home/s3cret/folder on n7.cluster.s3cret.corp, s3cret@uni.edu, \\\\s3cret\\share, postgresql://a:s3cret@h/x, "
           "hf_s3cretABCDEFGHIJ")
# texts that people and programs write
FREE = {("run", "facts"), ("run", "code"), ("outcome", "facts"), ("outcome", "judgement"), ("outcome", "log")}
PARTS = {("run", "plan_json"): ("description",), ("case", "body"): ("parameters", "evaluation", "variant")}  # below these keys


def test_no_text_of_a_store_takes_a_secret_to_a_public_page(measured: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each free text that is no hash has secrets added."""
    monkeypatch.chdir(furnish(measured, tmp_path / "here"))
    count = 0
    for place in places(Path(STORE)):
        table, column, row, path = place
        if (table, column) not in FREE and path[:1] not in [(key,) for key in PARTS.get((table, column), ())]:
            continue
        with closing(sqlite3.connect(STORE)) as connection:
            (value,) = connection.execute(f'SELECT "{column}" FROM "{table}" WHERE rowid = ?', [row]).fetchone()
        for key in path:
            value = (json.loads(value) if isinstance(value, str) else value)[key]
        if isinstance(value, str) and len(value) != 64 and not value.startswith("{"):
            edit(Path(STORE), place, value + SECRETS)
            count += 1
    assert count > 10
    with closing(sqlite3.connect(STORE)) as connection, connection:
        for key, body in connection.execute('SELECT key, body FROM "case"').fetchall():  # as if these cases had been measured
            names = {"new": Case.from_json(json.loads(body)).key, "old": key}
            connection.execute('UPDATE "case" SET key = :new WHERE key = :old', names)
            connection.execute("UPDATE outcome SET case_key = :new WHERE case_key = :old", names)
    for page, options, kept in (("private.html", (), True), ("public.html", ("--public",), False)):
        done = CliRunner().invoke(main, ["report", page, *options, *STORED])
        assert done.exit_code == 0, done.output
        assert ("s3cret" in Path(page).read_text()) == kept
