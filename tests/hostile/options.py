"""Options and arguments of the command line: numbers without bounds, texts that are commands, paths that do not exist."""

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
        ("that is a command", (*RUN, "--time", "1h\n::error::x"), "not a time"),
        ("that is a command", (*DECIDED, "--until", "2030-01-01", "--who", f"x\n{PWNED}"), "not one line"),
        ("that is written from right to left", (*DECIDED, "--until", "2030-01-01", "--who", "\u202eada"), "not one line"))),
    Attack("--commits that are options", (*COMPARE, "--commits", "--output=x", "--help"), "error", ("has no commit",)),
    Attack("--env of 5000 letters", (*COMPARE, "--env", LONG, LONG), "infrastructure", ("does not start",), 5),
    Attack("--name that leaves its folder", ("baseline", "save", *STORED, "--name", "../../thesis"), "bad-baseline", ("not a valid name",),
           changes=(STORE,)),
    Attack("a new plug-in that leaves its folder", ("new", "method", "../x"), "bad-plugin", ("is not a valid name",)),
    Attack("--report of 5000 letters", ("report", LONG, *STORED), "infrastructure", code=5),
    Attack("a table on a device", ("export", "csv", "/dev/full", *STORED), "error", ("not an ordinary file",)),
    Attack("a report over the plan, before a run", (*RUN, "--report", PLAN), "error", ("is not a report of cachemark",)),
    Attack("a site in the store", ("report", "--site", STORE, *STORED), says=("is a file",)),
    Attack("asv results in a file", ("export", "asv", PLAN, *STORED), says=("is a file",)),
    Attack("a calibration over the store", ("calibrate", "heatkv", "tiny-var", "--samples", "1", "--to", STORE), "error",
           ("is not a calibration",)),
    Attack("a calibration of 300 letters", ("calibrate", "heatkv", "tiny-var", "--samples", "1", "--to", "n" * 300), "infrastructure",
           ("nnn",), 5),
    Attack("a store that is not UTF-8", ("show", "--store", "st\udcff\udcfe.sqlite"), "bad-store", ("UTF-8",)),
    Attack("--until that is over", (*DECIDED, "--until", "2020-01-01", "--who", "ada"), says=("is over",)),
    Attack("--until that is no date", (*DECIDED, "--until", "2030-02-31", "--who", "ada"), says=("2030-02-31",)),
    Attack("a budget in Arabic digits", ("roofline", "tiny-var", "--budget", "\u0661/\u0662"), "bad-budget", ("is not a number",)),
    Attack("a size in Arabic digits", (*RUN, "--memory-cap", "\u0661GiB"), says=("not a size",)),
    Attack("a time in Arabic digits", (*RUN, "--time", "\u0661h"), says=("not a time",)),
    Attack("a run in Arabic digits", ("show", *STORED, "--run", "\u0661"), says=("is not a number in the digits 0 to 9",)),
    Attack("a number with an underscore", ("check", *STORED, "--threshold", "0.0_1"), says=("is not a number in the digits 0 to 9",)),
    Attack("a share in Arabic digits", ("share", PLAN, "\u0661/\u0662", *RUN[2:]), says=("is not a share",)),
    Attack("an import that never ends", ("ingest", "pytest-benchmark", "/dev/zero", *STORED), "infrastructure", ("cannot be read",), 5),
    Attack("--baseline that never ends", ("check", *STORED, "--baseline", "/dev/zero"), "bad-baseline", ("not an ordinary file",)),
]
