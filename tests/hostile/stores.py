"""Stores that are damaged, truncated or edited: each command that reads one fails with one line and exit code 2."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from .attack import PWNED, Attack
from .ground import BASELINE, PLAN, STORE, Preparation, preparation

STORED = ("--store", STORE)
REPORT, CHECK, CHECK_STORE = ("report", "page.html", *STORED), ("check", *STORED, "--baseline", BASELINE), ("db", "check", *STORED)
MERGE, TABLE = ("db", "merge", STORE, "--store", "new.sqlite"), ("export", "csv", *STORED)
RUN = ("run", PLAN, "--plugin", "dot.py", "--threads", "1", "--fresh")
LOGS = (f"{STORE}-shm", f"{STORE}-wal")  # beside a database that somebody reads
LONG = "n" * 5_000
REPOSITORY = str(Path(__file__).parents[2])
CALM = "(SELECT key FROM \"case\" WHERE body LIKE '%\"method\":\"calm\"%')"
ONE = f"(SELECT id FROM outcome WHERE case_key = {CALM})"


@preparation
def edited(folder: Path, *statements: str) -> None:
    """Execute statements, which the database does not check."""
    with closing(sqlite3.connect(folder / STORE)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        assert sum(connection.execute(statement).rowcount for statement in statements) > 0


@preparation
def flipped(folder: Path, table: str) -> None:
    """Flip each bit of the page from which a table grows."""
    with closing(sqlite3.connect(folder / STORE)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    data = bytearray((folder / STORE).read_bytes())
    data[(page - 1) * size : page * size] = bytes(byte ^ 255 for byte in data[(page - 1) * size : page * size])
    (folder / STORE).write_bytes(data)


@preparation
def piped(folder: Path, name: str) -> None:
    """Put a pipe in the place of a file, whose opening waits for another process."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)


def endless(folder: Path) -> None:
    """Replace the table of runs by a view that repeats them."""
    with closing(sqlite3.connect(folder / STORE)) as connection:
        connection.executescript("""PRAGMA foreign_keys = OFF; ALTER TABLE run RENAME TO other; CREATE VIEW run AS
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT other.* FROM other, n""")


def linked(folder: Path) -> None:
    """Link a folder of somebody else, with an old file, among those of artifacts."""
    (theirs := folder.parent / "others" / "ab").mkdir()
    (theirs / f"{'ab' * 32}.png").touch()
    os.utime(theirs / f"{'ab' * 32}.png", (1, 1))
    artifacts = folder / f"{STORE}.artifacts"
    free = next(name for name in map("{:02x}".format, range(256)) if not (artifacts / name).exists())
    (artifacts / free).symlink_to(theirs)


def renamed(folder: Path) -> None:
    """Replace a letter in the schema by a byte that is no UTF-8, which the driver's message then quotes."""
    data = (folder / STORE).read_bytes()
    assert b"CREATE TABLE run" in data
    (folder / STORE).write_bytes(data.replace(b"CREATE TABLE run", b"CREATE TABL\xf4 run", 1))


def damaged(name: str, arguments: tuple[str, ...], prepare: Preparation) -> Attack:
    """Return an attack with a store that this package cannot have written."""
    return Attack(name, arguments, "bad-store", ("damaged",), 2, prepare, changes=(*LOGS, "new.sqlite*"))


ROWS = [
    damaged("a plan that is no JSON, a report", REPORT, edited("UPDATE run SET plan_json = '{'")),
    damaged("samples that are gone, a check", CHECK, edited(f"UPDATE outcome SET samples = '{{}}' WHERE id = {ONE}")),
    damaged("a metric with a workflow command, a report", REPORT, edited(
        f"UPDATE outcome SET samples = '{{\"\\n{PWNED}\":[1.0]}}' WHERE id = {ONE}")),
    damaged("an anchor that is a number, a report", REPORT, edited("UPDATE run SET plan_json = json_set(plan_json, '$.anchor', 5)")),
    damaged("a price that is text, a report", REPORT, edited("UPDATE run SET facts = '{\"price_per_hour\": \"free\"}'")),
    *(damaged(f"{name}, {what}", arguments, edited(f"UPDATE outcome SET {change} WHERE id = {ONE}")) for name, change in (
        ("an artifact that is a number", "artifacts = '{\"grid.png\": 7}'"),
        ("a pair that is a number", "facts = '{\"pair\": 5}'"), ("latencies that are a table", "facts = '{\"full_beside\": {\"a\": 1}}'"),
        ("footnotes that are a number", "facts = '{\"footnotes\": 4}'"))
        for what, arguments in (("a report", REPORT), ("a merge", MERGE))),
    *(damaged(f"a case edited under its key, {what}", arguments, edited(
        f"UPDATE \"case\" SET body = json_set(body, '$.batch', 7) WHERE key = {CALM}"))
      for what, arguments in (("a check of the store", CHECK_STORE), ("a report", REPORT), ("a check", CHECK), ("a table", TABLE),
                              ("a merge", MERGE))),
    damaged("a flipped page of outcome, a check of the store", CHECK_STORE, flipped("outcome")),
    damaged("a flipped page of run, a report", REPORT, flipped("run")),
    Attack("a description that a slow search reads again and again", (*REPORT, "--public"), code=0,
           changes=(*LOGS, "page.html"), prepare=edited(
        "UPDATE run SET plan_json = json_set(plan_json, '$.description', replace(hex(zeroblob(100000)), '00', 'x-'))")),
    Attack("a view without end in place of a table", REPORT, "bad-store", ("lacks the table",), 2, endless, changes=LOGS),
    Attack("a linked folder among the artifacts, a repair", (*CHECK_STORE, "--repair"), code=0, says=("No damage.",), prepare=linked,
           changes=LOGS),
    Attack("a store that is a pipe", REPORT, "bad-store", ("is a pipe or a device",), prepare=piped(STORE)),
    Attack("a new store on a device", (*RUN, "--store", "/dev/null"), "bad-store", ("is a pipe or a device",)),
    Attack("a store to merge that is a pipe", ("db", "merge", "pipe", *STORED), "bad-store", ("is a pipe or a device",),
           prepare=piped("pipe"), changes=LOGS),
    damaged("a letter in the schema that is not UTF-8", REPORT, renamed),
    Attack("another schema", ("db", "prune", "--yes", *STORED), "bad-store", ("reads and writes schema",), 2,
           edited("UPDATE cachemark_version SET version_num = '9999'"), changes=LOGS),
    Attack("run 2^31", (*REPORT, "--run", str(2**31)), "bad-store", ("There is no run",), changes=LOGS),
    Attack("a store of 5 000 letters", (*RUN, "--store", LONG), "bad-store", ("is too long for a file",)),
    Attack("a store merged from a file that is none", ("db", "merge", PLAN, *STORED), "bad-store", changes=LOGS),
    Attack("a backup whose name is not UTF-8", ("db", "backup", "b\udcff.sqlite", *STORED), "bad-store", ("is not UTF-8",), changes=LOGS),
    Attack("a backup over a dangling link", ("db", "backup", "b.sqlite", *STORED), "bad-store", ("exists already",), changes=LOGS,
           prepare=lambda folder: (folder / "b.sqlite").symlink_to("nowhere")),
    *(Attack(f"{what} that is a pipe", (*arguments, "pipes", *STORED), slug, (name,), prepare=piped(f"pipes/{name}"),
             changes=(*LOGS, "pipes/index.html", "pipes/runs*"))
      for what, arguments, name, slug in (
          ("a list of benchmarks", ("export", "asv", "--repository", REPOSITORY), "benchmarks.json", "unsupported"),
          ("a list of reports", ("report", "--site"), "site.json", "error"))),
    Attack("a backup over a file", ("db", "backup", PLAN, *STORED), "bad-store", ("exists already",), changes=LOGS),
    Attack("a million nights", ("db", "prune", *STORED, "--nights", "1000000"), code=0, says=("Would delete 0",), changes=LOGS),
    Attack("a report in no folder, before measuring", (*RUN, "--report", "no/such/page.html"), says=("folder no/such does not exist",)),
]
