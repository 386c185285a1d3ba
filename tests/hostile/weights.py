"""What lies beside published weights: indices that name their files, what a source said of them, folders that conversions grow in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from .attack import PWNED, Attack
from .ground import PLAN, both, replaced, written

INDEX, NOTES, FILE = "w/model.safetensors.index.json", ".published.json", "w.pth"
DEEP = "[" * 100_000
DIGITS, NAME = "9" * 5_000, "x" * 5_000
VERIFY = ("weights", "verify", "var-d16", "--weights")
CONVERT = ("weights", "convert", "var-d16", "--to", "made", "--weights")
INDICES = {
    "nested without end": '{"weight_map":' + DEEP, "with a number of 5000 digits": f'{{"weight_map": {{"a": {DIGITS}}}}}',
    "of a list": '{"weight_map": ["a"]}', "of a number": '{"weight_map": {"a": 3}}', "of nothing": "null",
    "without files": '{"weight_map": {}}',
    "of somebody else's file": '{"weight_map": {"a": "../../others/thesis.txt"}}',
    "of the system's file": '{"weight_map": {"a": "/etc/passwd"}}',
    "of a name with NUL": '{"weight_map": {"a": "a\\u0000b"}}', "of a name of 5000 letters": f'{{"weight_map": {{"a": "{NAME}"}}}}',
    "of its folder": '{"weight_map": {"a": "."}}', "of half a letter": '{"weight_map": {"a": "\\ud800"}}',
    "of a command": f'{{"weight_map": {{"a": "\\n{PWNED}"}}}}',
    "of 20 000 files": '{"weight_map": {' + ",".join(f'"a{n}": "s{n}"' for n in range(20_000)) + "}}",
}
SAID = {
    "nested without end": '{"files":' + DEEP, "of endless bytes": '{"files": {"w.pth": {"bytes": 1e999}}}',
    "of 5000 digits": f'{{"files": {{"w.pth": {{"bytes": {DIGITS}}}}}}}', "of a list": '{"files": []}',
    "of no number": '{"files": {"w.pth": {"bytes": NaN}}}', "of no bytes": '{"files": {"w.pth": {}}}',
}


def in_plan(name: str, text: str) -> Attack:
    """A try with a broken index that a plan names."""
    return Attack(f"an index {name}, in a plan", ("explain", PLAN, "--plugin", "dot.py"), ("index of weights",), "bad-checkpoint",
                  prepare=both(written(INDEX, text), replaced(PLAN, 'weights = "dot.safetensors"', 'weights = "w"')), slow=True)


def noted(name: str, prepare: Callable[[Path], object], *says: str) -> Attack:
    """A try with a broken note of what a source said."""
    return Attack(f"notes of a source {name}", (*VERIFY, FILE), ("index of weights",), "bad-checkpoint", (NOTES, *says),
                  prepare=both(written(FILE, b"PK\x03\x04" + b"\0" * 50), prepare))


ROWS = [
    *(Attack(f"an index {name}, verified", (*VERIFY, "w"), ("index of weights",), "bad-checkpoint", prepare=written(INDEX, text))
      for name, text in INDICES.items()),
    *(in_plan(name, text) for name, text in INDICES.items()),
    Attack("an index that is a pipe, converted", (*CONVERT, "w"), ("index of weights",), "bad-checkpoint",
           prepare=both(written("w/x", ""), lambda folder: os.mkfifo(folder / INDEX))),
    *(noted(name, written(NOTES, text)) for name, text in SAID.items()),
    noted("that are a pipe", lambda folder: os.mkfifo(folder / NOTES)),
    noted("that lead nowhere", lambda folder: (folder / NOTES).symlink_to("nowhere")),
]
