"""Files that people edit, and those that other programs write: baselines, registers of incidents, owners, anchors, benchmarks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cachemark.core import calibrations

from .attack import PWNED, Attack
from .ground import ANCHOR, BASELINE, BENCHMARKS, OWNERS, PLAN, REGISTER, STORE, edited, written

LONG, DEEP = "x" * 5_000, '{"a":' * 5_000 + "1" + "}" * 5_000
DIFF = ("baseline", "diff", BASELINE, "--store", STORE)
LIST = ("incident", "list", "--register", REGISTER)
CHECK = ("check", "--store", STORE, "--incidents", REGISTER)
INGEST = ("ingest", "pytest-benchmark", BENCHMARKS, "--store", STORE)
REPORT = ("report", "r.html", "--store", STORE)


def put(*keys: str | int, value: Any) -> Callable[[Any], None]:
    """A change: the value at these keys."""

    def change(data: Any) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return change


def without(*keys: str | int) -> Callable[[Any], None]:
    """A change: nothing at these keys."""

    def change(data: Any) -> None:
        for key in keys[:-1]:
            data = data[key]
        del data[keys[-1]]

    return change


def baseline(name: str, change: Callable[[Any], None], *says: str) -> Attack:
    """A try with one odd value in a baseline."""
    return Attack(f"a baseline with {name}", DIFF, ("baseline file",), "bad-baseline", (BASELINE, *says), prepare=edited(BASELINE, change))


def incident(name: str, field: str, value: Any, *says: str) -> Attack:
    """A try with one odd field in the register."""
    return Attack(f"an incident {name}", LIST, (f"register {field}", "register"), "bad-baseline", (REGISTER, f"incidents.0.{field}", *says),
                  prepare=edited(REGISTER, put("incidents", 0, field, value=value)))


def owners(name: str, text: str, *says: str, kinds: tuple[str, ...] = ("owners",)) -> Attack:
    """A try with other owners."""
    return Attack(f"owners {name}", (*CHECK, "--owners", OWNERS), kinds, "bad-plan", (OWNERS, *says), changes=(REGISTER,),
                  prepare=written(OWNERS, text))


def broken(file: str, arguments: tuple[str, ...], kind: str, slug: str) -> list[Attack]:
    """Tries with a file that is broken as a whole."""
    return [Attack(f"{file}: {name}", arguments, (kind,), slug, (Path(file).name, *says), prepare=written(file, content))
            for name, content, says in (
                ("empty", "", ()), ("not text", b"\xff\xfe\x00", ()), ("half", '{"format": 1, "incid', ()), ("a number", "3", ()),
                ("nested 5000 deep", DEEP, ()), ("an integer of 5000 digits", '{"format": ' + "1" * 5000 + "}", ()), ("null", "null", ()))]


CASE = ("outcomes", 0, "case")
BASELINES = [
    *broken(BASELINE, DIFF, "baseline file", "bad-baseline"),
    *(baseline(f"{name} = {str(value)[:9]!r}", put("meta", name, value=value), f"meta.{name}")
      for name, value in (("expires", "soon"), ("expires", 20261231), ("expires", "9999999-01-01"), ("expires", "0001-01-01T00:00+23:59"),
                          ("saved", "2026-13-01"), ("plan", 3), ("reason", None), ("run", -1), ("replaces", []), ("name", []))),
    *(baseline(f"{keys[-1]} = {str(value)[:9]!r}", put(*keys, value=value), ".".join(map(str, keys)))
      for keys, value in (
          (("environment", "device"), None), (("environment", "facts"), 3), (("environment", "fingerprint"), ["x"]), (("metrics", "kl"), 0),
          (("metrics", "kl"), "one"), (("outcomes", 0, "status"), "fine"), (("outcomes", 0, "seconds"), -1),
          (("outcomes", 0, "seconds"), "1"), (("outcomes", 0, "samples"), None), (("outcomes", 0, "facts"), "none"),
          (("outcomes", 0, "artifacts", "grid.png"), 1),
          (("outcomes", 0, "log"), 3), ((*CASE, "grid"), "4x4"), ((*CASE, "grid"), [4]), ((*CASE, "sampling"), None),
          ((*CASE, "sampling", "top_k"), "many"), ((*CASE, "knobs"), []), ((*CASE, "batch"), -2), ((*CASE, "batch"), 10**30),
          ((*CASE, "model"), 3), ((*CASE, "method"), None), ((*CASE, "budget"), 0.5), ((*CASE, "evaluation"), 1),
          (("outcomes", 0, "samples", "latency"), [-1.0, 0.1]), (("outcomes", 0, "samples", "latency"), ["0.1"]),
          (("outcomes", 0, "samples", "kv_logical"), [-1]), (("outcomes", 0, "samples", "latency"), []),
          (("outcomes", 0, "facts", "condensed"), 3))),
    baseline("a metric unknown", put("outcomes", 0, "samples", "latencyy", value=[1.0]), "outcomes.0", "Did you mean"),
    baseline("an outcome without a case", without("outcomes", 0, "case"), "lacks outcomes.0.case"),
    baseline("no environment", without("environment"), "lacks environment"),
    baseline("an outcome that is a list", put("outcomes", 0, value=[]), "outcomes"),
    baseline("a fact nested 100 deep", put("outcomes", 0, "facts", "a", value=eval("[" * 90 + "]" * 90)), "64 deep"),
    Attack("a baseline with NaN", DIFF, ("baseline file",), "bad-baseline", ("NaN",), prepare=lambda folder: (folder / BASELINE).write_text(
        (folder / BASELINE).read_text().replace('"seconds": ', '"seconds": NaN, "was": ', 1))),
    Attack("an accepted baseline that is broken, listed", ("baseline", "list"), ("baseline file",), code=0, says=("is cut off",),
           prepare=written("baselines/accepted/ci/dots.json", "{")),
    Attack("an accepted baseline named as a command", ("baseline", "list"), ("baseline file",), code=0, says=(": :error::pwned/x",),
           prepare=written(f"baselines/accepted/{PWNED}/x.json", "{")),
    Attack("a case in a baseline that is a command", DIFF, ("baseline file",), code=0, says=("pwned",),
           prepare=edited(BASELINE, put(*CASE, "method", value=f"\n{PWNED}"))),
]
WORDS = (("a command", f"x\n{PWNED}"), ("a number", 3), ("null", None), ("of 5000 letters", LONG), ("a list", ["x"]))
INCIDENTS = [
    *broken(REGISTER, LIST, "register", "bad-baseline"),
    *(incident(f"whose {field} is {name}", field, value) for field in ("who", "link", "value", "reason", "metric", "onset")
      for name, value in WORDS[: 5 if field in ("who", "link") else 2]),
    *(incident(f"whose {field} is {str(value)[:12]!r}", field, value)
      for field, value in (
          ("until", "soon"), ("until", 20261231), ("until", "9999999-01-01"), ("until", "2026-02-30"), ("until", "2026-12-01T00:00"),
          ("since", "0000-01-01"), ("since", None), ("state", "open"), ("state", None), ("key", PWNED), ("key", ""), ("key", None),
          ("cells", []), ("cells", "all"), ("cells", [f"a\n{PWNED}"]), ("cells", [3]), ("factor", "weather"), ("factor", None),
          ("metrics", "kl"), ("metrics", [3]), ("found_by", "luck"),
          ("change", "1.2"), ("change", -1), ("change", 1e300), ("change", True), ("worst", "much"), ("worst", -0.5))),
    Attack("a register of format 99", LIST, ("register",), "bad-baseline", ("format = 99",),
           prepare=edited(REGISTER, put("format", value=99))),
    Attack("a register whose incidents are a table", LIST, ("register",), "bad-baseline", ("incidents",),
           prepare=edited(REGISTER, put("incidents", value={}))),
    Attack("an incident without cells", LIST, ("register",), "bad-baseline", ("lacks incidents.0.cells",),
           prepare=edited(REGISTER, without("incidents", 0, "cells"))),
    Attack("an incident with a key too many", LIST, ("register",), "bad-baseline", ("incidents.0.owner",),
           prepare=edited(REGISTER, put("incidents", 0, "owner", value="ada"))),
    Attack("a broken register, checked", CHECK, ("register",), "bad-baseline", (REGISTER,), prepare=written(REGISTER, "{")),
]
OWNED = [
    owners("that are no TOML", "owner =", "cannot be used"), owners("that are not text", "\udcff"),
    owners("nested 5000 deep", "a = " + "[" * 5000 + "]" * 5000), owners("of an integer of 5000 digits", "a = " + "1" * 5000),
    owners("with a key unknown", 'people = ["ada"]', "people"), owners("that are a text", 'owner = "ada"', "owner"),
    owners("without a name", '[[owner]]\nmethod = "x"', "lacks owner.0.name"),
    owners("with a pattern unknown", '[[owner]]\nname = "a"\nmetod = "x"', "metod"),
    *(owners(f"whose {field} is {said}", f'[[owner]]\nname = "ada"\n{field} = {value}\n'.replace('name = "ada"\nname', "name"),
             f"owner.0.{field}",
             kinds=("owners", f"owners {field}"))
      for field in ("name", "method", "model", "engine", "device", "metric")
      for said, value in (("a number", "3"), ("a command", f'"x\\n{PWNED}"'))),
]
OTHERS = [
    *broken(BENCHMARKS, INGEST, "benchmark file", "bad-results"),
    *broken(ANCHOR, REPORT, "anchor file", "bad-baseline"),
    *(Attack(f"an anchor whose {field} is {str(value)[:9]!r}", REPORT, (f"anchor file {field}",), "bad-baseline", ("dot.json",),
             prepare=edited(ANCHOR, put("anchor", field, value=value)))
      for field, value in (("model", 3), ("metric", ""), ("expected", "1.0"), ("expected", 1e400), ("tolerance", -1), ("source", None),
                           ("sampling", "hot"))),
    *(Attack(f"weights of the network that sees images: {name}", ("explain", PLAN, "--plugin", "dot.py"), ("weights file",),
             "bad-checkpoint", prepare=prepare)
      for name, prepare in (("noise", lambda folder: _quality(folder, b"x" * 99)), ("a pipe", lambda folder: _quality(folder, None)))),
    Attack("stamps of a site that are no table", ("report", "--site", "site", "--store", STORE), ("site stamps",), code=0,
           changes=("site*",), prepare=written("site/site.json", "[" * 5000)),
]


def _quality(folder: Path, content: bytes | None) -> None:
    """The good plan with a quality pass whose network is this; a pipe where there is no content."""
    text = (folder / PLAN).read_text()
    (folder / PLAN).write_text(text.replace('name = "dots"', 'name = "dots"\nquality = { preset = "scene", extractor_weights = "eyes" }'))
    if content is None:
        os.mkfifo(folder / "eyes")
    else:
        (folder / "eyes").write_bytes(content)


FACTS = next(facts for weights, facts in calibrations.packaged("heatkv").items() if facts["model"] == "tiny-var")
CALIBRATION = calibrations.place("heatkv", FACTS["weights"]).as_posix()
HEAT = ("roofline", "tiny-var", "--method", "heatkv", "--budget", "1/2", "--gpu", "h100")


def calibration(name: str, change: Callable[[Any], None], *says: str) -> Attack:
    """A try with one odd value in a calibration of the model's weights."""
    whole = written(CALIBRATION, json.dumps({"method": "heatkv", "facts": FACTS}))

    def prepare(folder: Path) -> None:
        whole(folder)
        edited(CALIBRATION, change)(folder)

    return Attack(f"a calibration {name}", HEAT, ("calibration file",), "bad-calibration", says, prepare=prepare)


CALIBRATIONS = [
    *broken(CALIBRATION, HEAT, "calibration file", "bad-calibration"),
    calibration("of another method", put("method", value="hack"), "for hack, not for heatkv"),
    calibration("whose method is a command", put("method", value=f"x\n{PWNED}"), "a text on one line"),
    calibration("of minus one sample", put("facts", "samples", value=-1), "facts.samples"),
    calibration("of another model", put("facts", "layers", value=5), "another model or resolution: layers 5, not 6"),
    calibration("of another resolution", put("facts", "scales", value=[1, 2, 3]), "scales 1 2 3, not 1 2 3 4 6 8 12 16"),
    calibration("whose scores are text", put("facts", "scas", 0, 0, 0, value="high"), "no scas of 6 × 4 × 7 finite numbers"),
    calibration("whose scores are too few", put("facts", "scas", 0, 0, value=[]), "no scas of 6 × 4 × 7 finite numbers"),
    calibration("with orders of its own", put("facts", "orders", value=[[0]]), "has facts.orders"),
]
ROWS = [*BASELINES, *INCIDENTS, *OWNED, *OTHERS, *CALIBRATIONS]
