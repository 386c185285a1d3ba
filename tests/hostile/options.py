"""Options and arguments of the command line: numbers beyond any bound, texts that are commands, paths that lead nowhere."""

from __future__ import annotations

from .attack import PWNED, Attack
from .ground import KEY, PLAN, REGISTER, STORE

LONG = "x" * 5_000
RUN = ("run", PLAN, "--plugin", "dot.py")
STORED = ("--store", STORE)
DECIDED = ("incident", "acknowledge", KEY, "--register", REGISTER)
COMPARE = ("compare", PLAN, "--plugin", "dot.py", *STORED)
ROWS = [
    *(Attack(f"{arguments[-2]} {name}", arguments, says=(says,)) for name, arguments, says in (
        ("with an escape", (*RUN, "--memory-cap", "1\nGiB\x1b[1m"), "not a size"),
        ("that is NaN", ("check", *STORED, "--threshold", "nan"), "not a number"),
        ("that is a command", (*RUN, "--budget", "1h\n::error::x"), "not a time"),
        ("that is a command", (*DECIDED, "--until", "2030-01-01", "--who", f"x\n{PWNED}"), "not one line"),
        ("that is written from right to left", (*DECIDED, "--until", "2030-01-01", "--who", "\u202eada"), "not one line"))),
    Attack("--commits that are options", (*COMPARE, "--commits", "--output=x", "--help"), "error", ("has no commit",)),
    Attack("--env of 5000 letters", (*COMPARE, "--env", LONG, LONG), "infrastructure", ("does not start",), 5),
    Attack("--name that leaves its folder", ("baseline", "save", *STORED, "--name", "../../thesis"), "bad-baseline", ("not a valid name",),
           changes=(STORE,)),
    Attack("a new plug-in that leaves its folder", ("new", "method", "../x"), "bad-plugin", ("is not a valid name",)),
    Attack("--report of 5000 letters", ("report", LONG, *STORED), "infrastructure", code=5),
    Attack("a result on a full disk", ("export", "csv", "/dev/full", *STORED), "infrastructure", ("No space left",), 5),
    Attack("--baseline that never ends", ("check", *STORED, "--baseline", "/dev/zero"), "bad-baseline", ("not an ordinary file",)),
    Attack("a command in a process of its own", ("list", "plans"), code=0, says=("demo",), process=True),
]
