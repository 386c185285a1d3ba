"""Stores that rotted, were cut short or were edited: what is damaged is named, the rest is told, and nothing is lost by a repair."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from cachemark.store.db import Store

from .attack import PWNED, Attack
from .ground import BASELINE, PLAN, STORE, Preparation

PAGE = "page.html"
REPORT = ("report", PAGE, "--store", STORE)
CHECK = ("check", "--store", STORE, "--baseline", BASELINE)
LOGS = (f"{STORE}-shm", f"{STORE}-wal")  # beside a database that somebody reads
REPAIRED = (STORE, f"{STORE}.*", *LOGS)
LONG = "n" * 5_000
DEEP = '{"a":' * 5_000 + "1" + "}" * 5_000
DEEP_100 = '{"a":' * 100 + "1" + "}" * 100
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


@dataclass(frozen=True)
class Rot:
    """A damaged row: what was done to it, the name under which it must be told, and what a check of the run makes of it."""

    name: str
    statement: str
    told: str
    check: int = 5


CALM = "(SELECT key FROM \"case\" WHERE method = 'calm')"
ONE = f"(SELECT id FROM outcome WHERE case_key = {CALM})"
ROTTEN = (
    Rot("a plan that is no JSON", "UPDATE run SET plan_json = '{'", "run 1: plan_json is no JSON"),
    Rot("a plan that is a number", "UPDATE run SET plan_json = '7'", "run 1: plan_json is '7' and not dict"),
    Rot("a plan that is empty", "UPDATE run SET plan_json = ''", "run 1: plan_json is no JSON"),
    Rot("a plan that is NaN", "UPDATE run SET plan_json = '{\"a\": NaN}'", "run 1: plan_json is no JSON"),
    Rot("a plan that is nested without end", f"UPDATE run SET plan_json = '{DEEP}'", "run 1: plan_json is no JSON"),
    Rot("a plan with a number of 5 000 digits", f"UPDATE run SET plan_json = '{DIGITS}'", "run 1: plan_json is no JSON"),
    Rot("a plan that is bytes", "UPDATE run SET plan_json = x'ff00fe'", "run 1: plan_json is no JSON"),
    Rot("a plan with a name of 5 000 letters", f"UPDATE run SET plan = '{LONG}'", "run 1: plan has 5000 letters", check=4),
    Rot("a plan with a number for a name", "UPDATE run SET plan = x'07'", "run 1: plan is", check=4),
    Rot("code that is a list", "UPDATE run SET code = '[]'", "run 1: code is '[]' and not dict"),
    Rot("a start that is no moment", "UPDATE run SET started = 'yesterday'", "run 1: started is 'yesterday'"),
    Rot("a start in the year 99999", "UPDATE run SET started = '99999-01-01T00:00:00'", "run 1: started is"),
    Rot("an end that is a number", "UPDATE run SET finished = 12", "run 1: finished is '12'"),
    Rot("a state that there is not", "UPDATE run SET state = 'asleep'", "run 1: state is 'asleep'"),
    Rot("a run without its machine", "UPDATE run SET environment_id = 99", "run 1: there is no environment 99"),
    Rot("facts of a machine that are no JSON", "UPDATE environment SET facts = 'x'", "environment 1: facts is no JSON"),
    Rot("a class of machines of 5 000 letters", f"UPDATE environment SET machine_class = '{LONG}'", "machine_class has 5000 letters"),
    Rot("facts that are no JSON", f"UPDATE outcome SET facts = '{{\"a\"' WHERE id = {ONE}", "facts is no JSON"),
    Rot("facts that are a list", f"UPDATE outcome SET facts = '[1]' WHERE id = {ONE}", "facts is '[1]' and not dict"),
    Rot("facts that are nested without end", f"UPDATE outcome SET facts = '{DEEP}' WHERE id = {ONE}", "facts is no JSON"),
    Rot("facts that are nested 100 deep", f"UPDATE outcome SET facts = '{DEEP_100}' WHERE id = {ONE}",
        "facts is nested more than 64 deep"),
    Rot("footnotes that are a number", f"UPDATE outcome SET facts = '{{\"footnotes\": 3}}' WHERE id = {ONE}", "fact 'footnotes'"),
    Rot("a pair that is a list", f"UPDATE outcome SET facts = '{{\"pair\": []}}' WHERE id = {ONE}", "fact 'pair'"),
    Rot("a limit that is text", f"UPDATE outcome SET facts = '{{\"limit\": {{\"least_time\": \"x\"}}}}' WHERE id = {ONE}", "fact 'limit'"),
    Rot("live bytes of two lengths", f"UPDATE outcome SET facts = '{{\"live_bytes\": {{\"tokens\": [1], \"live\": []}}}}' WHERE id = {ONE}",
        "fact 'live_bytes'"),
    Rot("a case that is no JSON", f"UPDATE \"case\" SET body = '{{' WHERE key = {CALM}", "body is no JSON"),
    Rot("a case that is a number", f"UPDATE \"case\" SET body = '7' WHERE key = {CALM}", "body is '7' and not dict"),
    Rot("a case without its fields", f"UPDATE \"case\" SET body = '{{}}' WHERE key = {CALM}", "its body is not the one"),
    Rot("a case with another budget", f"UPDATE \"case\" SET body = replace(body, '\"1/2\"', '\"1/4\"') WHERE key = {CALM}",
        "its body is not the one"),
    Rot("a case with a text for its grid", f"UPDATE \"case\" SET body = replace(body, '\"grid\":', '\"x\":') WHERE key = {CALM}",
        "its body is not the one"),
    Rot("a method of 5 000 letters", f"UPDATE \"case\" SET method = '{LONG}' WHERE key = {CALM}", "method has 5000 letters"),
    Rot("a batch that is text", f"UPDATE \"case\" SET batch = 'two' WHERE key = {CALM}", "batch is 'two' and not int"),
    Rot("a case that is gone", f"DELETE FROM \"case\" WHERE key = {CALM}", "there is no case"),
    Rot("samples of odd length", f"UPDATE sample SET packed = x'0102' WHERE metric = 'latency' AND outcome_id = {ONE}", "2 bytes are not"),
    Rot("samples that are text", f"UPDATE sample SET packed = '12345678' WHERE metric = 'latency' AND outcome_id = {ONE}", "packed is"),
    Rot("a latency of NaN", f"UPDATE sample SET count = 3, packed = {floats(float('nan'), 1, 1)} WHERE metric = 'latency' "
        f"AND outcome_id = {ONE}", "latency holds a value that is not finite"),
    Rot("an endless latency", f"UPDATE sample SET count = 3, packed = {floats(float('inf'), 1, 1)} WHERE metric = 'latency' "
        f"AND outcome_id = {ONE}", "latency holds a value that is not finite"),
    Rot("a negative latency", f"UPDATE sample SET count = 3, packed = {floats(-1, 1, 1)} WHERE metric = 'latency' AND outcome_id = {ONE}",
        "latency holds -1"),
    Rot("negative bytes", f"UPDATE sample SET packed = {floats(-4096)} WHERE metric = 'kv_allocated' AND outcome_id = {ONE}",
        "kv_allocated holds -4096"),
    Rot("samples that are gone", f"DELETE FROM sample WHERE metric = 'latency' AND outcome_id = {ONE}", "it lacks values"),
    Rot("a metric that there is not", f"UPDATE sample SET metric = 'beauty' WHERE metric = 'latency' AND outcome_id = {ONE}",
        "there is no metric 'beauty'"),
    Rot("a metric with a workflow command", f"UPDATE sample SET metric = '\n{PWNED}' WHERE metric = 'latency' AND outcome_id = {ONE}",
        "there is no metric"),
    Rot("a status that there is not", f"UPDATE outcome SET status = 'fine' WHERE id = {ONE}", "status is 'fine'"),
    Rot("seconds that are text", f"UPDATE outcome SET seconds = 'long' WHERE id = {ONE}", "seconds is 'long'"),
    Rot("endless seconds", f"UPDATE outcome SET seconds = 9e999 WHERE id = {ONE}", "seconds is inf"),
    Rot("a log that is bytes", f"UPDATE outcome SET log = x'ff' WHERE id = {ONE}", "log is"),
    Rot("an outcome that is gone", f"DELETE FROM outcome WHERE id = {ONE}", "is gone"),
)


def no_damage(folder: Path) -> None:
    """Nothing is left that a check would name, and what was damaged is kept."""
    from cachemark.workflows.upkeep import find_damage

    assert find_damage(folder / STORE) == []
    with Store.open(folder / STORE, create=False) as store:
        assert store.counts()["set_aside"] > 0
        assert len(store.outcomes(1)) >= 4


def of_row(rot: Rot) -> list[Attack]:
    """The same damage met by a report, a check of the run and a check of the store, and repaired."""
    kinds, prepare = ("column of JSON",), edited(rot.statement)
    told = rot.told if rot.told != "is gone" else "there is no outcome"
    return [
        Attack(f"{rot.name}, a report", REPORT, kinds, says=(rot.told, f"Report: {PAGE}"), code=0, prepare=prepare, changes=(PAGE, *LOGS)),
        Attack(f"{rot.name}, the store checked", ("db", "check", "--store", STORE), kinds, "bad-store", ("is damaged in",), 2, prepare,
               changes=LOGS, then=lambda folder: named(folder, told)),
        Attack(f"{rot.name}, repaired", ("db", "repair", "--store", STORE), kinds, says=("Set aside: ",), code=0, prepare=prepare,
               changes=REPAIRED, then=no_damage),
    ]


def named(folder: Path, told: str) -> None:
    """The list of all damage has the row."""
    from cachemark.workflows.upkeep import find_damage

    assert any(told in str(found) for found in find_damage(folder / STORE))


def judged(rot: Rot) -> Attack:
    """The run with this damage, judged."""
    slug = "nothing-measured" if rot.check == 4 else ""
    says = () if slug else ("Damaged: ", rot.told, "Infrastructure")
    return Attack(f"{rot.name}, the run judged", CHECK, ("column of JSON",), slug, says, rot.check, edited(rot.statement), changes=LOGS)


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


def kept(folder: Path) -> None:
    """The damaged file is there as it was, and what stands in its place is whole."""
    from cachemark.workflows.upkeep import find_damage

    assert (folder / f"{STORE}.damaged-1").is_file()
    assert find_damage(folder / STORE) == []


BROKEN: dict[str, Preparation] = {
    "cut to 99 %": cut(0.99), "cut to 90 %": cut(0.9), "cut to a half": cut(0.5),
    **{f"a flipped page of {table}": flipped(table) for table in ("outcome", "sample", "run", "membership", "case")},
}


def of_file(name: str, prepare: Preparation) -> list[Attack]:
    """A broken file met by each command that reads it, and rescued."""
    readers = {"a report": REPORT, "a check": CHECK, "a list": ("list", "runs", "--store", STORE), "the store checked": ("db", "check")}
    return [
        *(Attack(f"{name}, {what}", arguments if "--store" in arguments else (*arguments, "--store", STORE), ("--store",), "bad-store",
                 ("damaged",), 2, prepare, changes=LOGS) for what, arguments in readers.items()),
        Attack(f"{name}, repaired", ("db", "repair", "--store", STORE), ("--store",), says=(f"kept as {STORE}.damaged-1",), code=0,
               prepare=prepare, changes=REPAIRED, then=kept),
    ]


# -- versions, numbers and names ------------------------------------------------------------------------------------------
def revision(value: str) -> Preparation:
    return edited(f"UPDATE cachemark_version SET version_num = {value}")


RUN = ("run", PLAN, "--plugin", "dot.py", "--threads", "1", "--fresh")
HUGE = str(10**30)
ALL = [
    *(row for rot in ROTTEN for row in of_row(rot)),
    *map(judged, ROTTEN),
    *(row for name, prepare in BROKEN.items() for row in of_file(name, prepare)),
    *(Attack(f"revision {name}, {what}", arguments, ("--store",), "bad-store", (says,), 2, revision(value), changes=LOGS)
      for name, value, says in (("of words", "'head'", "which no version of cachemark has written"), ("0", "'0000'", "no version"),
                                ("of letters behind it", "'0001x'", "no version"), ("of 5 000 letters", f"'{LONG}'", "no version"),
                                ("9999", "'9999'", "knows schemas up to"), ("of bytes", "x'00ff'", "no version"))
      for what, arguments in (("a report", REPORT), ("a migration", ("db", "migrate", "--store", STORE)),
                              ("a repair", ("db", "repair", "--store", STORE)))),
    *(Attack(f"run 10^30, {arguments[0]}", (*arguments, "--run", HUGE), ("--run",), says=("is not in the range",), changes=LOGS)
      for arguments in (REPORT, CHECK, ("show", "--store", STORE), ("baseline", "save", "--store", STORE, "--reason", "x"),
                        ("export", "csv", "rows.csv", "--store", STORE))),
    Attack("run 2^63", (*REPORT, "--run", str(2**63)), ("--run",), says=("is not in the range",), changes=LOGS),
    Attack("run 2^31", (*REPORT, "--run", str(2**31)), ("--run",), "bad-store", ("There is no run",), changes=LOGS),
    Attack("a run that is negative", (*REPORT, "--run", "-1"), ("--run",), says=("--run",)),
    *(Attack(f"a store of 5 000 letters, {' '.join(arguments[:2])}", (*arguments, "--store", LONG), ("--store",), "bad-store",
             ("cannot be that of a file",)) for arguments in (("report", PAGE), ("show",), RUN, ("db", "check"), ("db", "repair"))),
    Attack("a store in folders of 5 000 letters", ("show", "--store", "d/" * 2_500 + "x"), ("--store",), "bad-store"),
    Attack("a policy of 5 000 digits", ("db", "prune", "--store", STORE, "--policy", "raw=" + "9" * 5_000), ("--policy",), "bad-store",
           ("is not a policy",), changes=LOGS),
    Attack("a policy of a million nights", ("db", "prune", "--store", STORE, "--policy", "raw=1000000"), ("--policy",), code=0,
           says=("Would prune 0",), changes=LOGS),
    Attack("artifacts of a file elsewhere", ("db", "migrate", "--store", STORE, "--artifacts", "there"), ("--artifacts",), "bad-store",
           ("lie beside it",), changes=(STORE, *LOGS)),
    Attack("artifacts in a name of 5 000 letters", ("db", "migrate", "--store", STORE, "--artifacts", LONG), ("--artifacts",), "bad-store",
           ("lie beside it",), changes=(STORE, *LOGS)),
    *(Attack(f"a report {name}, before measuring", (*RUN, "--report", page), ("--report",), says=(says,)) for name, page, says in (
        ("in no folder", "no/such/page.html", "there is no folder no/such"), ("below a file", f"{PLAN}/page.html", "there is no folder"),
        ("of 5 000 letters", LONG, "cannot be written"), ("in a folder of 5 000 letters", f"{LONG}/x", "there is no folder"))),
]
OFTEN = 4  # one in so many is tried by `make test`
ROWS = [replace(row, slow=number % OFTEN > 0) for number, row in enumerate(ALL)]
