"""Plug-ins that do anything at their import, register what is no method, or misbehave while a case runs."""

from __future__ import annotations

from .attack import Attack
from .ground import PLAN, written

METHOD = '''
import os, sys, time
from dataclasses import dataclass, field
from typing import Any, ClassVar
import cachemark as cm
from cachemark.methods.window import Window

@cm.method("bad")
@dataclass
class Bad(Window):
    name: ClassVar[str] = "bad"
    source: ClassVar[str] = "the tests"
    {body}
'''
FILE = "bad.py"


def at_import(name: str, text: str | bytes, *says: str) -> Attack:
    """A try with a plug-in that is refused, whatever asks for it."""
    return Attack(name, ("list", "methods", "--plugin", FILE), ("plug-in file",), "bad-plugin", says, prepare=written(FILE, text))


def of_class(name: str, body: str, *says: str) -> Attack:
    """A try with a class that is refused."""
    return at_import(name, METHOD.format(body=body), *says)


def registered(name: str, line: str, *says: str) -> Attack:
    """A try with a line that registers something."""
    return at_import(name, METHOD.format(body="pass") + line + "\n", *says)


def planned(name: str, body: str, slug: str, *says: str) -> Attack:
    """A try with a class that is wrong where a plan asks for it."""
    return Attack(name, ("explain", PLAN, "--plugin", "dot.py", "--plugin", FILE), ("plug-in knobs",), slug, says,
                  prepare=written(FILE, METHOD.format(body=body)))


ROWS = [
    # how an import ends
    at_import("leaves politely", "raise SystemExit(0)", "SystemExit"),
    at_import("exits with words", "import sys; sys.exit('done')", "SystemExit: done"),
    at_import("an error that is no Exception", "class E(BaseException): pass\nraise E('odd')", "E: odd"),
    at_import("GeneratorExit", "raise GeneratorExit", "GeneratorExit"),
    at_import("waits for a word", "input()", "EOFError"),
    at_import("calls itself for ever", "def f(): f()\nf()", "RecursionError"),
    at_import("eats memory", "x = bytearray(1 << 50)", "MemoryError"),
    at_import("ten million letters of an error", "raise ValueError('x' * 10_000_000)", "ValueError: xxx"),
    at_import("an error in many lines", "raise ValueError('a\\n::error::pwned\\n' * 1000)", "ValueError: a"),
    at_import("an error with control characters", "raise ValueError('a\\x1b[31m\\x07b')", "ValueError: a"),
    at_import("an error without words", "class E(Exception):\n    def __str__(self): raise self\nraise E", "its words cannot be had: E"),
    # files that are no Python
    at_import("an empty file", "", "registers no method"), at_import("noughts", b"\0" * 100), at_import("no UTF-8", b"\xff\xfe\xfa"),
    at_import("an image", b"\x89PNG\r\n\x1a\n" + bytes(range(256))), at_import("deep brackets", "(" * 10_000),
    at_import("half a string", "'''", "bad.py:1"), at_import("a long line", "x = " + "1+" * 200_000 + "1"),
    Attack("a folder", ("list", "methods", "--plugin", "."), ("plug-in file",), "bad-plugin", ("is not a file",)),
    Attack("a device", ("list", "methods", "--plugin", "/dev/zero"), ("plug-in file",), "bad-plugin", ("is not a file",)),
    Attack("a long path", ("list", "methods", "--plugin", "p" * 10_000), ("plug-in file",), "bad-plugin", ("cannot be read",)),
    # what is registered
    registered("an integer", 'cm.method("seven")(7)', "is of type int", "Register a class derived from Method"),
    registered("a class that is no method", 'cm.method("alien")(type("Alien", (), {}))', "the class Alien"),
    registered("an instance", 'cm.method("made")(Bad())', "is of type Bad"),
    registered("nothing", 'cm.method("none")(None)', "is of type NoneType"),
    registered("a model that is none", '__import__("cachemark.models.registry").models.registry.MODELS.add("m")({})',
               "Register a ModelEntry"),
    registered("a name of 100 000 letters", 'cm.method("x" * 100_000)(Bad)', "more letters is no name of a method"),
    registered("no name", 'cm.method("")(Bad)', "is no name of a method"),
    registered("a number for a name", "cm.method(3)(Bad)", "is no name of a method"),
    registered("a name of two lines", 'cm.method("a\\n::error::pwned")(Bad)', "is no name of a method"),
    registered("a name with an escape", 'cm.method("\\x1b[2J")(Bad)', "is no name of a method"),
    registered("the name of a built-in", 'cm.method("full")(Bad)', "already registered"),
    # knobs
    of_class("a knob that is NaN", 'share: float = float("nan")', "knob share = nan is not finite"),
    of_class("an endless knob", 'share: float = float("inf")', "knob share = inf is not finite"),
    of_class("a knob that is no JSON", "share: Any = object()", "knob share is of type object"),
    of_class("a knob that is a class", "share: Any = int", "knob share is of type type"),
    of_class("NaN in a list", 'share: Any = (1.0, float("nan"))', "knob share is of type tuple"),
    of_class("a knob of ten million letters", 'share: str = "x" * 10_000_000', "10000 are the most"),
    of_class("an integer of 5 000 digits", "share: int = 10**5000", "knob share"),
    of_class("a knob without a default", "share: float = field(kw_only=True)", "cannot be made"),
    of_class("cannot be made", "def __post_init__(self): raise ValueError('never')", "cannot be made: never"),
    planned("knobs of a budget that are NaN", 'def knobs(self): return {"B": self.B, "x": float("nan")} if self.B else {"B": 0}',
            "bad-knob", "x = nan is not finite"),
]
