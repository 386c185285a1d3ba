"""Stores that rotted, were cut short or were edited: each command that reads one is refused with a line and exit code 2."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from .attack import PWNED, Attack
from .ground import BASELINE, PLAN, STORE, Preparation

PAGE = "page.html"
REPORT = ("report", PAGE, "--store", STORE)
CHECK = ("check", "--store", STORE, "--baseline", BASELINE)
LOGS = (f"{STORE}-shm", f"{STORE}-wal")  # beside a database that somebody reads
LONG = "n" * 5_000
DEEP = '{"a":' * 5_000 + "1" + "}" * 5_000
DIGITS = '{"a": ' + "9" * 5_000 + "}"


def floats(*values: float) -> str:
    """Samples as a literal of SQL."""
    return f"x'{struct.pack(f'<{len(values)}d', *values).hex()}'"


def edited(*statements: str) -> Preparation:
    """A preparation: the statements, which the database does not check."""

    def edit(folder: Path) -> None:
        with closing(sqlite3.connect(folder / STORE)) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            assert sum(connection.execute(statement).rowcount for statement in statements) > 0

    return edit


CALM = "(SELECT key FROM \"case\" WHERE method = 'calm')"
ONE = f"(SELECT id FROM outcome WHERE case_key = {CALM})"
ROTTEN = {  # a row that this package cannot have written: every command that reads it is refused in one line
    "a plan that is no JSON": "UPDATE run SET plan_json = '{'",
    "a plan that is a number": "UPDATE run SET plan_json = '7'",
    "a plan that is nested without end": f"UPDATE run SET plan_json = '{DEEP}'",
    "a plan with a number of 5 000 digits": f"UPDATE run SET plan_json = '{DIGITS}'",
    "facts that are a list": f"UPDATE outcome SET facts = '[1]' WHERE id = {ONE}",
    "a case without its fields": f"UPDATE \"case\" SET body = '{{}}' WHERE key = {CALM}",
    "a latency of NaN": f"UPDATE sample SET count = 3, packed = {floats(float('nan'), 1, 1)} WHERE metric = 'latency' "
                        f"AND outcome_id = {ONE}",
    "samples that are gone": f"DELETE FROM sample WHERE metric = 'latency' AND outcome_id = {ONE}",
    "a metric with a workflow command": f"UPDATE sample SET metric = '\n{PWNED}' WHERE metric = 'latency' AND outcome_id = {ONE}",
}


def of_row(name: str, statement: str) -> list[Attack]:
    """The same damage met by a report, a check of the run and a check of the store."""
    readers = {"a report": REPORT, "the run judged": CHECK, "the store checked": ("db", "check", "--store", STORE)}
    return [Attack(f"{name}, {what}", arguments, ("column of JSON",), "bad-store", ("damaged",), 2, edited(statement), changes=LOGS)
            for what, arguments in readers.items()]


# -- the file -----------------------------------------------------------------------------------------------------------
def cut(share: float) -> Preparation:
    """A preparation: the end of the file is gone."""
    return lambda folder: (folder / STORE).open("r+b").truncate(int(share * (folder / STORE).stat().st_size))


def flipped(table: str) -> Preparation:
    """A preparation: each bit of the page from which a table grows."""

    def flip(folder: Path) -> None:
        with closing(sqlite3.connect(folder / STORE)) as connection:
            (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchone()
            (size,) = connection.execute("PRAGMA page_size").fetchone()
        with (folder / STORE).open("r+b") as file:
            file.seek((page - 1) * size)
            old = file.read(size)
            file.seek((page - 1) * size)
            file.write(bytes(byte ^ 255 for byte in old))

    return flip


BROKEN: dict[str, Preparation] = {
    "cut to 99 %": cut(0.99), "cut to 90 %": cut(0.9), "cut to a half": cut(0.5),
    **{f"a flipped page of {table}": flipped(table) for table in ("outcome", "sample", "run", "membership", "case")},
}


def of_file(name: str, prepare: Preparation) -> list[Attack]:
    """A broken file met by each command that reads it."""
    readers = {"the store checked": ("db", "check")}
    if name in ("a flipped page of outcome", "a flipped page of run"):  # SQLite notices a damaged page when it comes to it
        readers |= {"a report": REPORT, "a check": CHECK}
    return [
        *(Attack(f"{name}, {what}", arguments if "--store" in arguments else (*arguments, "--store", STORE), ("--store",), "bad-store",
                 ("damaged",), 2, prepare, changes=LOGS) for what, arguments in readers.items()),
    ]


# -- versions, numbers and names ------------------------------------------------------------------------------------------
def revision(value: str) -> Preparation:
    return edited(f"UPDATE cachemark_version SET version_num = {value}")


RUN = ("run", PLAN, "--plugin", "dot.py", "--threads", "1", "--fresh")
HUGE = str(10**30)
ALL = [
    *(row for name, statement in ROTTEN.items() for row in of_row(name, statement)),
    *(row for name, prepare in BROKEN.items() for row in of_file(name, prepare)),
    *(Attack(f"revision {name}, {what}", arguments, ("--store",), "bad-store", (says,), 2, revision(value), changes=LOGS)
      for name, value, says in (("of words", "'head'", "reads and writes schema"), ("of an older version", "'0003'", "reads and writes"),
                                ("of 5 000 letters", f"'{LONG}'", "reads and writes"), ("9999", "'9999'", "reads and writes"))
      for what, arguments in (("a report", REPORT), ("a check", ("db", "check", "--store", STORE)),
                              ("init", ("db", "init", "--store", STORE)))),
    *(Attack(f"run 10^30, {arguments[0]}", (*arguments, "--run", HUGE), ("--run",), says=("is not in the range",), changes=LOGS)
      for arguments in (REPORT, CHECK, ("show", "--store", STORE), ("baseline", "save", "--store", STORE, "--reason", "x"),
                        ("export", "csv", "rows.csv", "--store", STORE))),
    Attack("run 2^63", (*REPORT, "--run", str(2**63)), ("--run",), says=("is not in the range",), changes=LOGS),
    Attack("run 2^31", (*REPORT, "--run", str(2**31)), ("--run",), "bad-store", ("There is no run",), changes=LOGS),
    Attack("a run that is negative", (*REPORT, "--run", "-1"), ("--run",), says=("--run",)),
    *(Attack(f"a store of 5 000 letters, {' '.join(arguments[:2])}", (*arguments, "--store", LONG), ("--store",), "bad-store",
             ("cannot be that of a file",)) for arguments in (("report", PAGE), ("show",), RUN, ("db", "check"), ("db", "init"))),
    Attack("a store in folders of 5 000 letters", ("show", "--store", "d/" * 2_500 + "x"), ("--store",), "bad-store"),
    Attack("a backup over a file", ("db", "backup", PLAN, "--store", STORE), ("TARGET",), "bad-store", ("exists already",), changes=LOGS),
    Attack("a policy of 5 000 digits", ("db", "prune", "--store", STORE, "--policy", "raw=" + "9" * 5_000), ("--policy",), "bad-store",
           ("is not a policy",), changes=LOGS),
    Attack("a policy of a million nights", ("db", "prune", "--store", STORE, "--policy", "raw=1000000"), ("--policy",), code=0,
           says=("Would prune 0",), changes=LOGS),
    Attack("artifacts of a file elsewhere", ("db", "init", "--store", STORE, "--artifacts", "there"), ("--artifacts",), "bad-store",
           ("lie beside it",), changes=(STORE, *LOGS)),
    Attack("artifacts in a name of 5 000 letters", ("db", "init", "--store", STORE, "--artifacts", LONG), ("--artifacts",), "bad-store",
           ("lie beside it",), changes=(STORE, *LOGS)),
    *(Attack(f"a report {name}, before measuring", (*RUN, "--report", page), ("--report",), says=(says,)) for name, page, says in (
        ("in no folder", "no/such/page.html", "there is no folder no/such"), ("below a file", f"{PLAN}/page.html", "there is no folder"),
        ("of 5 000 letters", LONG, "cannot be written"), ("in a folder of 5 000 letters", f"{LONG}/x", "there is no folder"))),
]
OFTEN = 4  # one in so many is tried by `make test`
ROWS = [replace(row, slow=number % OFTEN > 0) for number, row in enumerate(ALL)]
