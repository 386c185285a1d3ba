"""Every kind of invalid plan: the change to a valid one, and the expected error."""

from typing import NamedTuple

from cachemark.core import errors
from support.examples import plan_text

GOOD = plan_text('"streaming", "calm"', cells='codecs = ["native"]\nsampling = "paper"')
SECOND = '\n[[cells]]\nmodel = "dot"\nmethods = ["calm"]\nbatch = 1\n'


class Bad(NamedTuple):
    """``old`` becomes ``new`` in the plan; the error must hold ``words`` and name the line of ``at``, or else of what was put in."""

    name: str
    old: str
    new: str
    kind: type[errors.CachemarkError]
    words: tuple[str, ...]
    at: str = ""

    @property
    def text(self) -> str:
        assert GOOD.count(self.old) == 1, self.old
        return GOOD.replace(self.old, self.new)

    @property
    def line(self) -> int:
        return self.text[: self.text.index(self.at or self.new)].count("\n") + 1


P, U, K = errors.BadPlan, errors.UnknownName, errors.BadParameter
BAD = [
    Bad("top key", "timeout = 60.0", "timeuot = 60.0", P, ("unknown key 'timeuot'", "Did you mean 'timeout'?")),
    Bad("anchor on an unknown metric", "[timing]", '[anchor]\nmetric = "nope"\nexpected = 1.0\ntolerance = 0.1\nsource = "x"\n[timing]', P,
        ("no metric is called 'nope'",), 'metric = "nope"'),
    Bad("key of cells", "batch = 2", "bacth = 2", P, ("unknown key 'bacth'", "Did you mean 'batch'?")),
    Bad("key named as a type", "batch = 2", "str = 2", P, ("unknown key 'str'", "Known here: batch, budgets")),
    Bad("key of sampling", 'sampling = "paper"', "sampling = { temprature = 1.0 }", P, ("'temprature'", "Did you mean 'temperature'?")),
    Bad("key of a sampling table", 'sampling = "paper"', "[cells.sampling]\ntopk = 1", P, ("'topk'", "Did you mean 'top_k'?"), "topk"),
    Bad("number for a text", 'model = "dot"', "model = 3", P, ("cells.0.model", "valid string", "'3'")),
    Bad("number for a method", '"streaming"', "3", P, ("cells.0.methods.0", "'3'"), "methods ="),
    Bad("no timeout", "timeout = 60.0", "timeout = 0.0", P, ("timeout: ", "greater than 0")),
    Bad("no warm-up, dotted", "[timing]\nwarmup = 1\nrepeats = 3\n", "timing.warmup = 0\n", P, ("timing.warmup", "'0'")),
    Bad("no methods", '["streaming", "calm"]', "[]", P, ("cells.0.methods", "at least 1 item"), "methods ="),
    *(Bad(f"name {name}", 'name = "dots"', f'name = "{name}"', P, ("name: ", "pattern")) for name in ("größe", "_x", "dots/..")),
    Bad("engine", "batch = 2", 'engine = "egaer"', P, ("cells.0.engine", "'eager', 'graph' or 'reference'", "'egaer'")),
    Bad("missing name", 'name = "dots"\n', "", P, ("name: field required",), "timeout"),  # the first line
    Bad("missing model of two", GOOD[GOOD.index("model =") :], 'methods = ["calm"]\n' + SECOND, P, ("cells.0.model: ",), "[[cells]]"),
    Bad("unknown model", 'model = "dot"', 'model = "dott"', U, ("Unknown model 'dott'", "Did you mean 'dot'?")),
    Bad("unknown method", '"streaming"', '"steaming"', U, ("Unknown method 'steaming'", "Did you mean 'streaming'?"), "methods ="),
    Bad("unknown parameter", '"streaming"', '{ name = "streaming", sink = 1 }', U, ("parameter of streaming 'sink'", "'sinks'?"),
        "methods ="),
    Bad("parameter of another type", '"streaming"', '{ name = "streaming", sinks = "1" }', K, ("sinks = '1' is not an int",), "methods ="),
    Bad("parameter too large", '"streaming"', '{ name = "streaming", sinks = 8 }', errors.BadBudget, ("8 sinks", "0 … 7"), "methods ="),
    Bad("unknown seeds", 'seeds = "s64"', 'seeds = "s46"', U, ("Unknown seed subset 's46'", "Did you mean 's64'?")),
    Bad("too many samples", "samples = 4", "samples = 65", P, ("65 samples of 's64'", "1 to 64")),
    Bad("batch above samples", "batch = 2", "batch = 5", P, ("Batch 5 is larger than the 4 samples of s64",)),
    Bad("budget of nothing", '"1/2"', '"0"', errors.BadBudget, ("'0' is outside (0, 1]",), "budgets ="),
    Bad("budget with underscores", '"1/2"', '"1_0/2_0"', errors.BadBudget, ("'1_0/2_0' is not a number",), "budgets ="),
    Bad("missing weights", 'weights = ""', 'weights = "nowhere.safetensors"', errors.BadCheckpoint, ("'nowhere.safetensors' is not",)),
]
