"""Options and arguments of the command line: numbers beyond any bound, texts that are commands, paths that lead nowhere."""

from __future__ import annotations

import os
import shutil

from .attack import PWNED, Attack
from .ground import BASELINE, KEY, PLAN, REGISTER, STORE

LONG, MANY, DIGITS = "x" * 5_000, "1" + "0" * 30, "9" * 5000
RUN = ("run", PLAN, "--plugin", "dot.py")
STORED = ("--store", STORE)
DECIDED = ("incident", "acknowledge", KEY, "--register", REGISTER)
COMPARE = ("compare", PLAN, "--plugin", "dot.py", *STORED)
BISECT = ("bisect", "streaming 1/2", "--plan", PLAN, "--plugin", "dot.py")
ROWS = [
    *(Attack(f"{arguments[-2]} {name}", arguments, says=(says,)) for name, arguments, says in (
        ("of 5000 digits", ("show", *STORED, "--run", DIGITS), "not a valid integer"),
        ("of 10^30", (*RUN, "--threads", MANY), "x<=4096"),
        ("with an escape", (*RUN, "--memory-cap", "1\nGiB\x1b[1m"), "not a size"),
        ("that is NaN", ("check", *STORED, "--threshold", "nan"), "not a number"),
        ("that is endless", ("check", *STORED, "--min-coverage", "inf"), "0<=x<=1"),
        ("that is a command", (*RUN, "--budget", "1h\n::error::x"), "not a time"),
        ("before all calendars", (*RUN, "--deadline", "0001-01-01T00:00+23:59"), "not a moment"),
        ("beyond the calendar", (*DECIDED, "--who", "ada", "--until", "10000-01-01"), "does not match the format"),
        ("that is a command", (*DECIDED, "--until", "2030-01-01", "--who", f"x\n{PWNED}"), "line breaks"),
        ("that is a command at once", ("baseline", "save", *STORED, "--reason", PWNED), "CI command"),
        ("that is written from right to left", (*DECIDED, "--until", "2030-01-01", "--who", "\u202eada"), "control characters"))),
    Attack("a share of 5000 digits", ("share", PLAN, f"1/{DIGITS}"), says=("not a share",)),
    Attack("a budget of millions of digits", ("roofline", "tiny-llamagen", "--budget", "1e-9999999"), "bad-budget", ("outside (0, 1]",)),
    Attack("a case that is a command", ("show", f"\n{PWNED}", *STORED), "unknown-name"),
    Attack("--commits that are options", (*COMPARE, "--commits", "--output=x", "--help"), "error", ("has no commit",)),
    Attack("--good that is an option", (*BISECT, "--good", "--output=x", "--bad", "HEAD"), "error", ("has no commit",)),
    Attack("--env of 5000 letters", (*COMPARE, "--env", LONG, LONG), "infrastructure", ("does not start",), 5),
    Attack("--name that leaves its folder", ("baseline", "save", *STORED, "--name", "../../thesis"), "bad-baseline", ("not a valid name",),
           changes=(STORE,)),
    Attack("a new plug-in that leaves its folder", ("new", "method", "../x"), "bad-plugin", ("is not a valid name",)),
    Attack("--report of 5000 letters", ("report", LONG, *STORED), "infrastructure", code=5),
    Attack("a result on a full disk", ("export", "csv", "/dev/full", *STORED), "infrastructure", ("No space left",), 5),
    Attack("--baseline that never ends", ("check", *STORED, "--baseline", "/dev/zero"), "bad-baseline", ("no ordinary file",)),
    Attack("--incidents that is a pipe", ("check", *STORED, "--incidents", "pipe"), "bad-baseline", ("no ordinary file",),
           prepare=lambda folder: os.mkfifo(folder / "pipe")),
    Attack("--baseline that is missing", ("report", "page.html", *STORED, "--baseline", "absent.json"), "bad-baseline", ("absent.json",)),
    Attack("--site with --run", ("report", "--site", "site", *STORED, "--run", "1"), says=("--run",)),
    Attack("a JUnit file without a baseline", ("export", "junit", "junit.xml", *STORED), "bad-baseline", ("There is no baseline",),
           prepare=lambda folder: shutil.rmtree(folder / "baselines")),
    Attack("a plan that is a baseline", ("run", f"./{BASELINE}"), "bad-plan", ("not TOML",)),
    Attack("a command in a process of its own", ("list", "plans"), code=0, says=("demo",), process=True),
]
