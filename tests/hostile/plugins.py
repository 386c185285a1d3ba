"""Plug-ins that do anything at their import, register what is no method, or misbehave while a case runs."""

from __future__ import annotations

from pathlib import Path

from cachemark.plans.plugin_import import VARIABLE

from .attack import Attack
from .ground import PLAN, written

LIMIT = {VARIABLE: "1.5"}
METHOD = '''
import os, sys, time
from dataclasses import dataclass, field
from typing import Any, ClassVar
from cachemark.core import registry
from cachemark.methods.window import Window

@registry.methods.add("bad")
@dataclass
class Bad(Window):
    name: ClassVar[str] = "bad"
    source: ClassVar[str] = "the tests"
    {body}
'''
FILE = "bad.py"


def at_import(name: str, text: str | bytes, *says: str, environment: dict[str, str] | None = None) -> Attack:
    """A try with a plug-in that is refused, whatever asks for it."""
    return Attack(name, ("list", "methods", "--plugin", FILE), ("plug-in file",), "bad-plugin", says, prepare=written(FILE, text),
                  environment=environment or {})


def of_class(name: str, body: str, *says: str) -> Attack:
    """A try with a class that is refused."""
    return at_import(name, METHOD.format(body=body), *says)


def registered(name: str, line: str, *says: str) -> Attack:
    """A try with a line that registers something."""
    return at_import(name, METHOD.format(body="pass") + line + "\n", *says)


def planned(name: str, body: str, slug: str, *says: str) -> Attack:
    """A try with a class that is wrong where a plan asks for it."""
    return Attack(name, ("run", PLAN, "--plugin", "dot.py", "--plugin", FILE, "--explain"), ("plug-in knobs",), slug, says,
                  prepare=written(FILE, METHOD.format(body=body)))


def harmless(name: str, text: str, *says: str, body: str = "pass") -> Attack:
    """A try with a plug-in whose import changes things, and which is listed all the same."""
    return Attack(name, ("list", "methods", "--plugin", FILE), ("plug-in file",), says=("bad", *says), code=0,
                  prepare=written(FILE, METHOD.format(body=body) + text))


def nothing_left(folder: Path) -> None:
    """The process that the plug-in has started is gone."""
    pid = int((folder / "pid").read_text())
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    with open("pid", "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists("pid"):
    time.sleep(0.01)
"""
ROWS = [
    # how an import ends
    at_import("leaves at once", "import os; os._exit(0)", "ends its process with exit code 0"),
    at_import("leaves with the code of a regression", "import os; os._exit(1)", "ends its process with exit code 1"),
    at_import("leaves politely", "raise SystemExit(0)", "SystemExit"),
    at_import("exits with words", "import sys; sys.exit('done')", "SystemExit: done"),
    at_import("Ctrl-C of its own", "raise KeyboardInterrupt", "raises KeyboardInterrupt when it is imported"),
    at_import("an error that is no Exception", "class E(BaseException): pass\nraise E('odd')", "E: odd"),
    at_import("GeneratorExit", "raise GeneratorExit", "GeneratorExit"),
    at_import("never ends", "while True: pass", "does not come to its end within 1.5 s", environment=LIMIT),
    at_import("sleeps for ever", "import time; time.sleep(10**6)", "does not come to its end within 1.5 s", environment=LIMIT),
    at_import("waits for a word", "input()", "EOFError"),
    at_import("waits for a thread", "import threading; threading.Event().wait()", "does not come to its end", environment=LIMIT),
    at_import("cannot be interrupted", "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
              "does not come to its end", environment=LIMIT),
    at_import("kills itself", "import os; os.kill(os.getpid(), 9)", "ends its process by signal 9"),
    at_import("kills its parent", "import os; os.kill(os.getppid(), 9)\nwhile True: pass", "ends its process by signal 9"),
    at_import("kills its group", "import os; os.killpg(0, 9)", "ends its process by signal 9"),
    at_import("reads from nowhere", "import ctypes; ctypes.string_at(0)", "ends its process by signal 11"),
    at_import("aborts", "import os; os.abort()", "ends its process by signal 6"),
    at_import("stops itself", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "does not come to its end", environment=LIMIT),
    at_import("calls itself for ever", "def f(): f()\nf()", "RecursionError"),
    at_import("eats memory", "x = bytearray(1 << 50)", "MemoryError"),
    at_import("ten million letters of an error", "raise ValueError('x' * 10_000_000)", "ValueError: xxx"),
    at_import("an error in many lines", "raise ValueError('a\\n::error::pwned\\n' * 1000)", "ValueError: a"),
    at_import("an error with control characters", "raise ValueError('a\\x1b[31m\\x07b')", "ValueError: a"),
    at_import("an error without words", "class E(Exception):\n    def __str__(self): raise self\nraise E", "its words cannot be had: E"),
    at_import("an error that ends us when asked", "import os\nclass E(Exception):\n    def __str__(self): os._exit(0)\nraise E",
              "ends its process with exit code 0"),
    at_import("closes everything", "import os; os.closerange(0, 4096); raise ValueError('closed')"),
    # files that are no Python
    at_import("an empty file", "", "registers no method"), at_import("noughts", b"\0" * 100), at_import("no UTF-8", b"\xff\xfe\xfa"),
    at_import("an image", b"\x89PNG\r\n\x1a\n" + bytes(range(256))), at_import("deep brackets", "(" * 10_000),
    at_import("half a string", "'''", "bad.py:1"), at_import("a long line", "x = " + "1+" * 200_000 + "1"),
    Attack("a folder", ("list", "methods", "--plugin", "."), ("plug-in file",), "bad-plugin", ("is not a file",)),
    Attack("a device", ("list", "methods", "--plugin", "/dev/zero"), ("plug-in file",), "bad-plugin", ("is not a file",)),
    Attack("a long path", ("list", "methods", "--plugin", "p" * 10_000), ("plug-in file",), "bad-plugin", ("cannot be read",)),
    # what is registered
    registered("an integer", 'registry.methods.add("seven")(7)', "is of type int", "Register a class derived from Method"),
    registered("a class that is no method", 'registry.methods.add("alien")(type("Alien", (), {}))', "the class Alien"),
    registered("an instance", 'registry.methods.add("made")(Bad())', "is of type Bad"),
    registered("nothing", 'registry.methods.add("none")(None)', "is of type NoneType"),
    registered("a model that is none", 'registry.models.add("m")({})', "Register a ModelEntry"),
    registered("a name of 100 000 letters", 'registry.methods.add("x" * 100_000)(Bad)', "more letters is no name of a method"),
    registered("no name", 'registry.methods.add("")(Bad)', "is no name of a method"),
    registered("a number for a name", "registry.methods.add(3)(Bad)", "is no name of a method"),
    registered("a name of two lines", 'registry.methods.add("a\\n::error::pwned")(Bad)', "is no name of a method"),
    registered("a name with an escape", 'registry.methods.add("\\x1b[2J")(Bad)', "is no name of a method"),
    registered("the name of a built-in", 'registry.methods.add("full")(Bad)', "already registered"),
    registered("another's module", 'Bad.__module__ = "cachemark.methods.full"; registry.methods.add("full")(Bad)',
               "replaces the method 'full'"),
    registered("a built-in replaced in the table", 'registry.methods._entries["full"] = Bad', "replaces the method 'full'"),
    registered("a built-in taken out", 'del registry.methods._entries["streaming"]', "replaces the method 'streaming'"),
    registered("a model replaced in the table", 'registry.models._entries["tiny-var"] = None', "replaces the model 'tiny-var'"),
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
    of_class("leaves when it is made", "def __post_init__(self): os._exit(0)", "ends its process with exit code 0"),
    planned("knobs of a budget that are NaN", 'def knobs(self): return {"B": self.B, "x": float("nan")} if self.B else {"B": 0}',
            "bad-knob", "x = nan is not finite"),
    # what an import changes
    harmless("changes the folder", "os.chdir('/')\n"),
    harmless("forgets the environment", "os.environ.clear()\n"),
    harmless("replaces our functions", "from cachemark.workflows import listing\nlisting._methods = lambda: []\n", "streaming"),
    registered("a function of Python replaced", "import builtins; builtins.sorted = lambda *a, **k: []", "registers no method"),
    harmless("sets torch to something else", "import torch\ntorch.set_default_dtype(torch.float64)\ntorch.set_default_device('meta')\n"),
    Attack("a daemon at import", ("list", "methods", "--plugin", FILE), ("plug-in file",), "bad-plugin", ("leaves processes running",),
           prepare=written(FILE, METHOD.format(body="pass") + DAEMON), changes=("pid",), then=nothing_left),
    # the limit itself
    *(Attack(f"a limit of {value!r}", ("list", "methods", "--plugin", "dot.py"), ("plug-in file",), "error", (VARIABLE,),
             environment={VARIABLE: value}) for value in ("soon", "-1", "0", "nan", "inf", "1e300")),
]
