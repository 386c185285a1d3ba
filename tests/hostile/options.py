"""Options and arguments of the command line: numbers beyond any bound, texts that are commands, paths that lead nowhere."""

from __future__ import annotations

import os

from .attack import PWNED, Attack
from .ground import BASELINE, BENCHMARKS, KEY, PLAN, REGISTER, STORE, Preparation, written

LONG, MANY, DIGITS = "x" * 5_000, "1" + "0" * 30, "9" * 5000
RUN = ("run", PLAN, "--plugin", "dot.py")
STORED = ("--store", STORE)
ADVISE = ("advise", "--model", "tiny-llamagen", "--gpu", "h100", *STORED)
DECIDED = ("incident", "acknowledge", KEY, "--register", REGISTER)
ACKNOWLEDGE = (*DECIDED, "--who", "ada", "--until", "2030-01-01")
COMPARE = ("compare", PLAN, "--plugin", "dot.py", *STORED)
BISECT = ("bisect", "streaming 1/2", "--plan", PLAN, "--plugin", "dot.py")
CALIBRATE = ("calibrate", "heatkv", "tiny-var")
VERIFY = ("weights", "verify", "var-d16")
NOTHING: Preparation = lambda folder: None  # noqa: E731 - a name for nothing


def wrong(
    kind: str, name: str, arguments: tuple[str, ...], *says: str, slug: str = "", code: int = 2, prepare: Preparation = NOTHING,
    changes: tuple[str, ...] = (),
) -> Attack:
    """A try with one odd value of an option or argument."""
    return Attack(f"{kind} {name}", arguments, (kind,), slug, says, code, prepare, changes)


NUMBERS = [
    wrong(option, value[:9], (*command, option.rpartition(" ")[2], value), said)
    for option, command, bad in (
        ("--run", ("show", *STORED), ((MANY, "x<=9007199254740992"), (DIGITS, "not a valid integer"), ("0", "1<=x"), ("-1", "1<=x"))),
        ("--threads", RUN, ((MANY, "x<=4096"), ("0", "1<=x"), ("1e3", "not a valid integer"))),
        ("--lock-clocks", RUN, ((MANY, "x<=10000"), ("-5", "0<=x"))),
        ("--memory-cap", RUN, (("9" * 400 + "GiB", "more than 1024 TiB"), ("-1GiB", "not a size"), ("0", "not a size"),
                               ("nanGiB", "not a size"), ("1\nGiB\x1b[1m", "not a size"))),
        ("--min-coverage", ("check", *STORED), (("nan", "not a number"), ("1e300", "0<=x<=1"), ("inf", "0<=x<=1"))),
        ("--threshold", ("check", *STORED), (("nan", "not a number"), ("inf", "x<=100"), ("0", "0<x"))),
        ("--images", COMPARE, ((MANY, "x<=1000"), ("2", "3<=x"))),
        ("calibrate --samples", CALIBRATE, ((MANY, "x<=64"), ("0", "1<=x"), ("1e3", "not a valid integer"))),
        ("compare --samples", COMPARE, ((MANY, "x<=2000"), ("4", "can show nothing"))),
        ("--delta", COMPARE, (("nan", "not a number"), ("1", "0<x<1"))),
        ("--minutes", COMPARE, (("nan", "not a number"), ("1e300", "x<=525600"), ("-1", "0<=x"))),
        ("--seed", COMPARE, ((MANY, "x<=4294967295"), ("-1", "0<=x"))),
        ("roofline --batch", ("roofline", "tiny-llamagen"), ((MANY, "x<=1000000"), ("0", "1<=x"))),
        ("advise --batch", ADVISE, ((MANY, "x<=4096"), ("0", "1<=x"))),
        ("--memory", ADVISE, (("9" * 400 + "GiB", "more than 1024 TiB"), ("nanGiB", "not a size"))),
        ("--latency", ADVISE, (("nan", "not a number"), ("inf", "x<=1000000000"), ("-1s", "0<x"), ("1s\n::error::x", "not a valid float"))),
        ("--max-loss", ADVISE, (("nan", "not a number"), ("101%", "x<=100"), ("1%%", "not a share"), ("0", "not a share"))),
        ("--pixels", VERIFY, ((MANY, "x<=65536"), ("0", "1<=x"), ("1e3", "not a valid integer"))),
        ("--shard-size", ("weights", "convert", "var-d16", "--to", "x"), (("9" * 400 + "GiB", "more than 1024 TiB"), ("0", "not a size"),
                                                                          ("nanGiB", "not a size"))),
        ("--against", ("report", "r.html", *STORED), ((MANY, "x<=9007199254740992"), ("0", "1<=x"))),
        ("--steps", ("roofline", "tiny-mar"), ((MANY, "x<=10000"), ("0", "1<=x"))),
        ("--demanding", ("roofline", "tiny-var"), ((MANY, "x<=10000"), ("-1", "0<=x"))),
        ("--tokens-per-pass", ("roofline", "tiny-llamagen", "--decoder", "jacobi=4"), (("nan", "not a number"), ("1e300", "x<=1024"))),
        ("--deadline", RUN, (("0001-01-01T00:00+23:59", "not a moment"), ("9999-12-31", "more than 365 days"), ("25:99", "not a moment"))),
    )
    for value, said in bad
] + [
    wrong("run --budget", value[:9], (*RUN, "--budget", value), said)
    for value, said in (("9" * 400 + "h", "more than 365 days"), ("-1h", "not a time"), ("nan", "not a time"), ("1h\n::error::x",
          "not a time"))
] + [
    wrong("I/N", value[:9], ("share", PLAN, value), said)
    for value, said in ((f"1/{DIGITS}", "not a share"), ("0/0", "not a share"), ("²/³", "not a share"), ("1/99999", "at most 10000"))
] + [
    wrong("report --days", MANY, ("report", "--site", "site", *STORED, "--days", MANY), "x<=36500"),
    wrong("baseline promote --days", MANY, ("baseline", "save", *STORED, "--days", MANY), "x<=36500"),
    wrong("--until", "beyond the calendar", (*DECIDED, "--who", "ada", "--until", "10000-01-01"), "does not match the format"),
    wrong("--width", "of 400 digits", ("export", "figures", "f", *STORED, "--width", "9" * 400 + "in"), "wide", slug="error"),
    wrong("--policy", "of 5000 digits", ("db", "prune", *STORED, "--policy", f"raw={DIGITS}"), "is not a policy", slug="bad-store"),
]
WORDS = [
    wrong(option, "that is none of the words", (*command, option, f"\n{PWNED}"), "is not one of")
    for option, command in (("--device", RUN), ("--executor", RUN), ("--on", ("price", PLAN)), ("--dtype", ("roofline", "tiny-llamagen")))
] + [
    wrong("KIND", "that is none", ("list", f"\n{PWNED}"), "is not one of"),
    wrong("--gpu", "of roofline", ("roofline", "tiny-llamagen", "--gpu", LONG), "Unknown GPU", slug="unknown-name"),
    wrong("roofline --budget", "of millions of digits", ("roofline", "tiny-llamagen", "--budget", "1e-9999999"), "outside (0, 1]",
          slug="bad-budget"),
    wrong("roofline --budget", "of 5000 letters", ("roofline", "tiny-llamagen", "--budget", LONG), "is not a number", slug="bad-budget"),
    wrong("--decoder", "of 5000 digits", ("roofline", "tiny-llamagen", "--decoder", f"jacobi={DIGITS}"), "no decoder with",
          slug="bad-knob"),
    wrong("--decoder", "of 5000 letters", ("roofline", "tiny-llamagen", "--decoder", f"{LONG}=3"), "Unknown decoder",
          slug="unknown-name"),
    wrong("roofline --method", "that is a command", (*RUN, "--method", f"\n{PWNED}"), "Unknown method", slug="unknown-name"),
    wrong("export latex --method", "of 5000 letters", ("export", "latex", *STORED, "--method", LONG), "give at most 1000"),
    wrong("export latex --method", "that is unknown", ("export", "latex", *STORED, "--method", "x"), slug="unknown-name"),
    wrong("--column", "that is a command", ("export", "markdown", *STORED, "--column", f"\n{PWNED}")),
    wrong("--column", "of 5000 letters", ("export", "latex", *STORED, "--column", LONG), "give at most 1000"),
    wrong("CASES", "of 5000 letters", ("export", "grid", "g.png", LONG, *STORED), slug="unknown-name"),
    wrong("MODEL", "of 5000 letters", ("roofline", LONG), "Unknown model", slug="unknown-name"),
    wrong("METHOD", "that is a command", ("calibrate", f"\n{PWNED}", "tiny-var"), "Unknown method", slug="unknown-name"),
    wrong("METHOD", "that asks for nothing", ("calibrate", "window", "tiny-var"), "asks for no calibration", slug="unsupported"),
    wrong("MODELS", "that is a command", ("weights", "list", f"\n{PWNED}"), "Unknown published model", slug="unknown-name"),
    wrong("MODELS", "of 5000 letters", ("weights", "list", LONG), "Unknown published model", slug="unknown-name"),
    wrong("CASE", "that is a command", ("show", f"\n{PWNED}", *STORED), slug="unknown-name"),
    wrong("CASE", "of 5000 letters", ("show", LONG, *STORED), slug="unknown-name"),
    wrong("--case", "of 5000 letters", (*COMPARE, "--env", "python", "python", "--case", LONG), slug="unknown-name"),
    wrong("--arms", "that are commands", (*COMPARE, "--arms", f"\n{PWNED}", "full"), slug="unknown-name"),
    wrong("--commits", "that are options", (*COMPARE, "--commits", "--output=x", "--help"), "There is no commit", slug="error"),
    wrong("--env", "of 5000 letters", (*COMPARE, "--env", LONG, LONG), "does not start", slug="infrastructure", code=5),
    wrong("--good", "that is an option", (*BISECT, "--good", "--output=x", "--bad", "HEAD"), "There is no commit", slug="error"),
    wrong("--bad", "that is a command", (*BISECT, "--good", "HEAD", "--bad", f"\n{PWNED}"), "There is no commit", slug="error"),
    wrong("--plan", "of 5000 letters", ("bisect", "x", "--good", "a", "--bad", "b", "--plan", LONG), slug="unknown-name"),
    Attack("--address that is a command", (*RUN, "--executor", "ray", "--address", f"\n{PWNED}"), ("--address",), "infrastructure", code=5,
           changes=("cachemark.sqlite",)),
    wrong("KEY", "that is a command", ("incident", "accept", f"\n{PWNED}", "--register", REGISTER, "--who", "ada"), slug="unknown-name"),
    *(wrong(option, f"that is {name}", (*command, option, value), said)
      for option, command in (("--who", (*DECIDED, "--until", "2030-01-01")), ("--link", ACKNOWLEDGE), ("--reason", ("baseline", "save",
            *STORED)),
                              ("--name", ("baseline", "save", *STORED)))
      for name, value, said in (("a command", f"x\n{PWNED}", "line breaks"), ("a command at once", PWNED, "CI command"), ("long", LONG,
            "at most 1000"),
                                ("turned", "\u202eada", "control characters"))),
    wrong("--name", "that leaves its folder", ("baseline", "save", *STORED, "--name", "../../thesis"), "is not a name",
          slug="bad-baseline", changes=(STORE,)),
]
WORDS += [
    wrong("method|model|metric", "that is none", ("new", f"\n{PWNED}", "mine"), "is not one of"),
    *(wrong("NAME", name, ("new", "method", value), said, slug="bad-plugin") for name, value, said in (
        ("of 5000 letters", LONG, "is no name"), ("that is a command", f"\n{PWNED}", "is no name"), ("that leaves", "../x", "is no name"),
        ("that is code", 'x"); import os; ("', "is no name"), ("of a built-in", "linear", "cachemark itself has a method"))),
    wrong("NAME", "of a metric of ours", ("new", "metric", "psnr"), "cachemark itself has a metric", slug="bad-plugin"),
    wrong("--folder", "of 5000 letters", ("new", "method", "mine", "--folder", LONG), "cannot be written", slug="bad-plugin"),
    wrong("--folder", "that is not there", ("new", "model", "mine", "--folder", "nowhere"), "cannot be written", slug="bad-plugin"),
    wrong("test method NAME|FILE", "of 5000 letters", ("test", "method", LONG), "Unknown method", slug="unknown-name"),
    wrong("test method NAME|FILE", "that is a command", ("test", "method", f"\n{PWNED}"), "Unknown method", slug="unknown-name"),
    wrong("test model NAME|FILE", "of 5000 letters", ("test", "model", LONG), "Unknown model", slug="unknown-name"),
    wrong("test model NAME|FILE", "that is no plug-in", ("test", "model", "./plan.py"), "is not a file", slug="bad-plugin"),
    wrong("test metric NAME|FILE", "of 5000 letters", ("test", "metric", LONG), "Unknown metric", slug="unknown-name"),
    wrong("test metric NAME|FILE", "that is a command", ("test", "metric", f"\n{PWNED}"), "Unknown metric", slug="unknown-name"),
    wrong("test metric NAME|FILE", "of one of ours", ("test", "metric", "psnr"), "is a metric of cachemark itself", slug="unsupported"),
    *(wrong("--knob", name, ("test", "method", "fewer_steps", "--knob", value), said, slug=slug) for name, value, said, slug in (
        ("without a value", "steps", "is not NAME=VALUE", ""), ("of 20 000 letters", f"steps={'9' * 20_000}", "is not NAME=VALUE", ""),
        ("that is a command", f"\n{PWNED}=1", "is not NAME=VALUE", ""), ("that is not finite", "steps=NaN", "is not finite", ""),
        ("that is a text", "steps=soon", "is not an int", "bad-knob"), ("that there is not", "x=1", "Unknown knob", "unknown-name"))),
]
PATHS = [
    wrong(kind, f"of 5000 letters, {' '.join(arguments[:2])[:40]}", arguments, slug=slug, code=code)
    for kind, arguments, slug, code in (
        ("--plugin", ("run", PLAN, "--plugin", "."), "bad-plugin", 2),
        ("--owners", ("check", *STORED, "--owners", LONG), "", 0), ("--incidents", ("check", *STORED, "--incidents", LONG),
              "bad-baseline", 2),
        ("--register", ("incident", "list", "--register", LONG), "bad-baseline", 2), ("--root", ("baseline", "list", "--root", LONG),
              "error", 2),
        ("--baseline", ("check", *STORED, "--baseline", LONG), "bad-baseline", 2),
        ("--baseline", ("report", "r.html", *STORED, "--baseline", LONG), "bad-baseline", 2),
        ("baseline diff PATH", ("baseline", "diff", LONG, *STORED), "bad-baseline", 2), ("export grid PATH", ("report", LONG, *STORED),
              "infrastructure", 5),
        ("--report", (*RUN, "--report", LONG), "", 2),
        ("--site", ("report", "--site", LONG, *STORED), "infrastructure", 5),
        ("export csv PATH", ("export", "csv", LONG, *STORED), "infrastructure", 5),
        ("export csv PATH", ("export", "parquet", LONG, *STORED), "infrastructure", 5),
        ("export grid PATH", ("export", "grid", LONG, *STORED), "infrastructure", 5),
        ("FOLDER", ("export", "figures", LONG, *STORED), "infrastructure", 5),
        ("FOLDER", ("export", "asv", LONG, *STORED), "unsupported", 2),
        ("--write-plan", (*ADVISE, "--write-plan", LONG), "", 2),
        ("--propose", ("check", *STORED, "--propose", LONG), "", 0),
        ("--summary", ("export", "github", *STORED, "--summary", LONG), "infrastructure", 5),
        ("--comment", ("export", "github", *STORED, "--comment", LONG), "infrastructure", 5),
        ("--weights", (*CALIBRATE, "--weights", LONG), "bad-checkpoint", 2),
        ("--decoder-weights", (*CALIBRATE, "--decoder-weights", LONG), "bad-checkpoint", 2),
        ("--weights", (*VERIFY, "--weights", LONG), "error", 2), ("--from", (*VERIFY, "--from", LONG), "error", 2),
        ("calibrate --to", (*CALIBRATE, "--samples", "1", "--to", LONG), "error", 2),
        ("weights convert --to", ("weights", "convert", "var-d16", "--weights", PLAN, "--to", LONG), "bad-checkpoint", 2),
        ("weights convert --to", ("weights", "fetch", "mar-b", "--to", LONG), "error", 2),
        ("--repository", (*BISECT, "--good", "a", "--bad", "b", "--repository", LONG), "", 2),
        ("--repository", ("export", "asv", "x", *STORED, "--repository", LONG), "", 2),
        ("FILE", ("ingest", "pytest-benchmark", LONG, *STORED), "", 2), ("OTHERS", ("db", "merge", LONG, *STORED), "", 2),
    )
]
SPECIAL = [
    wrong("--baseline", "that is a folder", ("check", *STORED, "--baseline", "."), "no ordinary file", slug="bad-baseline"),
    wrong("--baseline", "that never ends", ("check", *STORED, "--baseline", "/dev/zero"), "no ordinary file", slug="bad-baseline"),
    wrong("--incidents", "that is a pipe", ("check", *STORED, "--incidents", "pipe"), "no ordinary file", slug="bad-baseline",
          prepare=lambda folder: os.mkfifo(folder / "pipe")),
    wrong("--register", "that never ends", ("incident", "list", "--register", "/dev/zero"), "no ordinary file", slug="bad-baseline"),
    wrong("OTHERS", "that is no store", ("db", "merge", BENCHMARKS, *STORED), slug="bad-store"),
    wrong("FILE", "that is no benchmark", ("ingest", "pytest-benchmark", PLAN, *STORED), "is not JSON", slug="bad-results"),
    wrong("--plan", "that is a baseline", ("bisect", "x", "--good", "a", "--bad", "b", "--plan", BASELINE), slug="unknown-name"),
    wrong("PLAN", "that is a baseline", ("run", f"./{BASELINE}"), "not TOML", slug="bad-plan"),
    Attack("a result on a full disk", ("export", "csv", "/dev/full", *STORED), ("export csv PATH",), "infrastructure",
          ("No space left",), 5),
    Attack("a command in a process of its own", ("list", "plans"), ("KIND",), code=0, says=("demo",), process=True),
    Attack("a file that holds a store's URL and a command", ("show", "--store", "@url"), ("--store",), "bad-store",
           prepare=lambda folder: [written("url", f"x.sqlite{PWNED}\n")(folder), (folder / "url").chmod(0o600)]),
]
ROWS = [*NUMBERS, *WORDS, *PATHS, *SPECIAL]
