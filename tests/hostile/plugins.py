"""Plug-ins with side effects at import, invalid registrations, or errors when a plan queries them."""

from support.examples import METRIC

from .attack import Attack
from .ground import PLAN, both, replaced, written

METHOD = '''
import os, sys
import cachemark as cm
from cachemark.methods.window import Window

@cm.method("bad")
class Bad(Window):
    name = "bad"
    source = "the tests"
    {body}
'''
FILE = "bad.py"
ASKED = (PLAN, "--plugin", "dot.py", "--plugin", FILE)


def at_import(name: str, text: str | bytes, *says: str) -> Attack:
    """Return an attack with a plug-in that is refused, whatever imports it."""
    return Attack(name, ("list", "methods", "--plugin", FILE), "bad-plugin", says, prepare=written(FILE, text))


def asked(name: str, body: str, says: str, command: str = "explain") -> Attack:
    """Return an attack with a plug-in that is imported without harm and fails in a plan."""
    return Attack(name, (command, *ASKED), "bad-plugin", (says,),
                  prepare=both(written(FILE, METHOD.format(body=body)), replaced(PLAN, '"streaming"', '"streaming", "bad"')))


ROWS = [
    at_import("exits with words", "import sys; sys.exit('done')", "SystemExit: done"),
    at_import("eats memory", "x = bytearray(1 << 50)", "MemoryError"),
    at_import("an error in many lines", "raise ValueError('a\\n::error::pwned\\n' * 1000)", "ValueError: a"),
    at_import("an error whose text raises", "class E(Exception):\n    def __str__(self): raise self\nraise E()", "its text cannot be made"),
    at_import("a recursion limit", "import sys; sys.setrecursionlimit(60)", "registers no method"),
    at_import("a name that is a path", METHOD.format(body="pass").replace('("bad")', '("../../x")'), "has a name of other letters"),
    *(at_import(f"a method whose name is {name}", METHOD.format(body=f"name = {name}"), "another name than it has", says)
      for name, says in (("b'bad'", "of type bytes"), ("property(lambda self: 1 / 0)", "of type property"), ("'full'", "'full'"))),
    at_import("nothing registered", "x = 1", "registers no method"),
    at_import("closes the standard streams", "import os, sys; sys.stdout.close(); os.close(1); os.close(2)", "registers no method"),
    Attack("a device", ("list", "methods", "--plugin", "/dev/zero"), "bad-plugin", ("is not a file",)),
    at_import("ends the process with 0", "import os; os._exit(0)", "A plug-in ended the process (exit code 0)"),
    *(Attack(f"ends {command} with 0", (command, *asks), "bad-plugin", ("A plug-in ended the process (exit code 0)",),
             prepare=written(FILE, "import os; os._exit(0)"))
      for command, asks in (("run", ASKED), ("generate", ("tiny-var", "--plugin", FILE)),
                            ("compare", (PLAN, "--cases", "dot full", "dot streaming 1/2", *ASKED[1:])))),
    at_import("crashes", "import os; os.kill(os.getpid(), 11)", "A plug-in ended the process (signal 11)"),
    at_import("exits when it is made", METHOD.format(body="def __post_init__(self): sys.exit(0)"), "cannot be made: SystemExit"),
    Attack("a failing method that replaces sys.exit", ("test", "method", FILE), code=1, says=("failed",), prepare=written(
        FILE, "import sys; sys.exit = print\n" + METHOD.format(body="def begin(self, *_): raise ValueError"))),
    Attack("a folder and a umask of its own", ("generate", "tiny-var", "--plugin", FILE, "-o", "o.png"), code=0, says=("o.png",),
           prepare=written(FILE, METHOD.format(body="os.chdir('../others'); os.umask(0o777)")), changes=("o.png",)),
    *(Attack(name, ("generate", "tiny-var", "--plugin", FILE, "--method", "bad", "-o", "o.png"), code=0, says=("o.png",),
             prepare=written(FILE, METHOD.format(body=f"def begin(self, *a, **k): {body}; super().begin(*a, **k)")), changes=("o.png",))
      for name, body in (("a folder and a umask when a generation begins", "os.chdir('../others'); os.umask(0o777)"),
                         ("clocks of its own", "import time; time.perf_counter = time.perf_counter_ns = time.monotonic = lambda: None"),
                         ("escapes that it prints", "print('\\x1b[31mred\\x9b1m\\u202eleft\\r::error::x', flush=True)"))),
    Attack("attention that is nothing", ("generate", "tiny-var", "--plugin", FILE, "--method", "bad", "-o", "o.png"), "bad-plugin",
           ("'bad' answers what cannot be used",), prepare=written(FILE, METHOD.format(body="def attend(self, *_, **__): return None"))),
    Attack("closes its output while it generates", ("generate", "tiny-var", "--plugin", FILE, "--method", "bad", "-o", "o.png"), code=0,
           says=("o.png",), changes=("o.png",), prepare=written(
               FILE, METHOD.format(body="def begin(self, *a, **k): os.close(1); sys.stdout.close(); super().begin(*a, **k)"))),
    Attack("ends the kit with 0", ("test", "method", FILE), "bad-plugin", ("A plug-in ended the process (exit code 0)",),
           prepare=written(FILE, METHOD.format(body="def begin(self, *_): os._exit(0)"))),
    at_import("an integer", METHOD.format(body="pass") + 'cm.method("seven")(7)', "is of type int", "Register a class derived from Method"),
    at_import("the name of a built-in", METHOD.format(body="pass") + 'cm.method("full")(Bad)', "already registered"),
    asked("raises when it is resolved", "def resolve(self, layout): raise ValueError('never')", f"{FILE}:10: ValueError: never"),
    asked("answers nothing of what it reads", "def attended(self, layout, site, step): return None", "'bad' answers what cannot be used",
          "price"),
    Attack("a metric whose title is markup", ("test", "metric", FILE), "bad-plugin", ("title or a unit",),
           prepare=written(FILE, METRIC.replace('unit = ""', 'unit = ""\n    title = "<img src=x onerror=alert(1)>"'))),
]
