"""Plug-ins that misbehave where a plan asks what they are: their knobs, sizes, horizons and costs, before anything is measured."""

from __future__ import annotations

from dataclasses import replace

from .attack import Attack
from .ground import PLAN, both, replaced, written
from .plugins import FILE, METHOD

DECODER = '''
from cachemark.contract.decoder import Decoder

@cm.decoder("mine")
@dataclass
class Mine(Decoder):
    name: ClassVar[str] = "mine"
    {body}
'''
ASKED = (PLAN, "--plugin", "dot.py", "--plugin", FILE)
LISTED, NAMED = ('"streaming"', '"streaming", "bad"'), ('"1/2"', '{ name = "bad" }')
AHEAD = ('"streaming"', '"bad"]\ndecoders = ["jacobi"]\ncodecs = ["native"')
ENDS = {  # what a call does, and what is said of it
    "raises": ("raise ValueError('never')", f"{FILE}:13: ValueError: never"),
}


def asked(
    name: str, body: str, says: str, edit: tuple[str, str] = LISTED, command: str = "explain",
    plugin: str = METHOD, slug: str = "bad-plugin",
) -> Attack:
    """A try with a plug-in that is imported without harm, in a plan that asks it."""
    return Attack(name, (command, *ASKED), ("plug-in knobs",), slug, (says,),
                  prepare=both(written(FILE, plugin.replace("{body}", body)), replaced(PLAN, *edit)))


def decoder(name: str, body: str, says: str, slug: str = "bad-plugin", line: str = "") -> Attack:
    """A try with a decoder of a plug-in."""
    return asked(name, body, says, ("batch = 2", 'batch = 2\ndecoders = ["mine"]'), slug=slug,
                 plugin=METHOD.replace("{body}", "pass") + DECODER + line)


ALL = [
    *(asked(f"a method that {how} when it is resolved", f"def resolve(self, layout): {code}", says)
      for how, (code, says) in ENDS.items()),
    *(asked(f"a method that {how} when its horizon is asked", f"def horizon(self, first): {code}", says,
            AHEAD) for how, (code, says) in ENDS.items()),
    *(asked(f"a method that {how} when it is priced", f"def attended(self, layout, site, step): {code}", says, command="price")
      for how, (code, says) in ENDS.items()),
    asked("a method that fits no budget", "def fit(self, ratio, layout): raise ZeroDivisionError", f"{FILE}:13: ZeroDivisionError"),
    *(asked(f"a method that answers {name}", body, "'bad' answers what cannot be used", edit, command) for name, body, edit, command in (
        ("words to a budget", "def fit(self, ratio, layout): return 'half'", LISTED, "explain"),
        ("a list of knobs", "def knobs(self): return [1] if self.B else {'B': 0}", LISTED, "explain"),
        ("words to its size", "def own_budget(self, layout): return 'half'", NAMED, "explain"),
        ("words to its horizon", "def horizon(self, first): return 'far'", AHEAD, "explain"),
        ("nothing of what it reads", "def attended(self, layout, site, step): return None", LISTED, "price"))),
    *(decoder(f"a decoder that {how} when it is checked", f"def check(self): {code}", says.replace(":13:", ":21:"))
      for how, (code, says) in ENDS.items()),
    decoder("a decoder with a knob that is NaN", 'share: float = float("nan")', "knob share = nan is not finite"),
    decoder("a decoder with a knob that is no JSON", "share: Any = object()", "knob share is of type object"),
    decoder("a decoder with a knob without a default", "share: float = field(kw_only=True)", "decoder 'mine' cannot be made"),
    decoder("a decoder that is an integer", "pass", "is of type int", line='cm.decoder("seven")(7)\n'),
    decoder("a decoder named in two lines", "pass", "is no name of a decoder", line='cm.decoder("a\\n::error::pwned")(Mine)\n'),
]
OFTEN = 3  # one in so many is tried by `make test`
ROWS = [replace(row, slow=number % OFTEN > 0) for number, row in enumerate(ALL)]
