"""Plans that are broken, huge, nested without end, or name files that are none."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from .attack import PWNED, Attack
from .ground import PLAN, WEIGHTS, Preparation, replaced, written

EXPLAIN = ("explain", PLAN, "--plugin", "dot.py")
BLOCK = 'methods = ["streaming"]'
LONG, MANY = "x" * 10_000, "1" + "0" * 40
NOISE = bytes(range(256)) * 8


def changed(name: str, old: str, new: str, kind: str, *says: str, slug: str = "bad-plan", code: int = 2) -> Attack:
    """A try with one change in the good plan."""
    return Attack(name, EXPLAIN, (kind,), slug, says, code, replaced(PLAN, old, new))


def cells(name: str, line: str, field: str, *says: str, slug: str = "bad-plan", code: int = 2) -> Attack:
    """A try with one more line in the block of the good plan."""
    return changed(name, BLOCK, f"{BLOCK}\n{line}", f"plan cells.{field}", *says, slug=slug, code=code)


def top(name: str, line: str, field: str, *says: str, slug: str = "bad-plan", code: int = 2) -> Attack:
    """A try with one more line at the top of the good plan."""
    return changed(name, 'name = "dots"', f'name = "dots"\n{line}', f"plan {field}", *says, slug=slug, code=code)


def anchor(
    name: str, field: str, says: str, *, metric: str = "kl", expected: float = 1.0, tolerance: float = 1.0, source: str = "x",
) -> Attack:
    """A try with one odd value in the anchor of the good plan."""
    table = f'metric = "{metric}", expected = {expected}, tolerance = {tolerance}, source = "{source}"'
    return top(name, f"anchor = {{ {table} }}", field, says)


def with_weights(content: bytes) -> Preparation:
    """A preparation: the good plan on the embedded model, which reads its weights before it runs, with other weights."""

    def put(folder: Path) -> None:
        replaced(PLAN, 'model = "dot"', 'model = "tiny-llamagen"')(folder)
        written("dot.safetensors", content)(folder)

    return put


def with_reference(folder: Path) -> None:
    """The good plan with a quality pass against a file that holds no reference."""
    replaced(PLAN, 'name = "dots"', 'name = "dots"\nquality = { preset = "scene", reference = "noise" }')(folder)
    written("noise", NOISE)(folder)


def with_prompts(name: str, content: str | bytes) -> Preparation:
    """A preparation: the good plan on the embedded text-to-image model, with its prompts in the file or folder ``name`` begins with."""

    def put(folder: Path) -> None:
        replaced(PLAN, 'model = "dot"', 'model = "tiny-t2i"')(folder)
        replaced(PLAN, 'weights = "dot.safetensors"', "")(folder)
        replaced(PLAN, "samples = 4", f'samples = 4\nprompts = "{name.partition("/")[0]}"')(folder)
        written(name, content)(folder)

    return put


def special(make: str) -> Preparation:
    """A preparation: something that is no ordinary file in the place of the weights."""

    def put(folder: Path) -> None:
        path = folder / "dot.safetensors"
        path.unlink()
        if make == "pipe":
            os.mkfifo(path)
        elif make == "folder":
            path.mkdir()
        elif make == "socket":
            here = os.open(folder, os.O_RDONLY)
            socket.socket(socket.AF_UNIX).bind(f"/proc/self/fd/{here}/{path.name}")  # the path itself may be too long for an address
            os.close(here)
        else:
            path.symlink_to(make)

    return put


WHOLE = [
    Attack("empty", EXPLAIN, ("plan file",), "bad-plan", ("name: field required",), prepare=written(PLAN, "")),
    Attack("bytes", EXPLAIN, ("plan file",), "bad-plan", ("not TOML",), prepare=written(PLAN, b"\xff\xfe\x00")),
    Attack("a byte order mark", EXPLAIN, ("plan file",), "bad-plan", ("not TOML",), prepare=written(PLAN, "\ufeffname = 'x'")),
    Attack("half a string", EXPLAIN, ("plan file",), "bad-plan", ("not TOML",), prepare=written(PLAN, 'name = "do')),
    Attack("more than a megabyte", EXPLAIN, ("plan file",), "bad-plan", ("more than 1000000 bytes",),
           prepare=written(PLAN, 'name = "dots"\n' + "# a comment\n" * 100_000)),
    *(Attack(f"{what} nested 5000 deep", EXPLAIN, ("plan file",), "bad-plan", ("nested more than 16 deep",),
             prepare=written(PLAN, "a = " + opening * 5000 + closing * 5000))
      for what, opening, closing in (("arrays", "[", "]"), ("tables", "{a = ", "}"))),
    Attack("arrays nested 17 deep", EXPLAIN, ("plan file",), "bad-plan", ("nested more than 16 deep",),
           prepare=written(PLAN, "a = " + "[" * 17 + "]" * 17)),
    Attack("dotted keys without end", EXPLAIN, ("plan file",), "bad-plan", ("nested more than 16 deep",),
           prepare=written(PLAN, "a." * 400_000 + "a = 1")),
    Attack("a dotted table without end", EXPLAIN, ("plan file",), "bad-plan", ("nested more than 16 deep", f"{PLAN}:2"),
           prepare=written(PLAN, "\n[[" + "'a' . " * 5000 + "b]]")),
    Attack("an integer of 5000 digits", EXPLAIN, ("plan file",), "bad-plan", ("not TOML",),
           prepare=written(PLAN, "timeout = " + "1" * 5000)),
    Attack("an integer of 5000 hex digits", EXPLAIN, ("plan file",), "bad-plan", ("timing",),
           prepare=written(PLAN, 'name = "x"\ncells = []\ntiming = 0x' + "f" * 5000)),
    Attack("a hundred thousand unknown keys", EXPLAIN, ("plan file",), "bad-plan", ("unknown key 'k0'",),
           prepare=replaced(PLAN, "timeout", "".join(f"k{i} = 1\n" for i in range(80_000)) + "timeout")),
    Attack("a key of 100 000 letters", EXPLAIN, ("plan file",), "bad-plan", ("unknown key 'xxx",),
           prepare=replaced(PLAN, "timeout", "x" * 100_000 + " = 1\ntimeout")),
    Attack("a key that is a command", EXPLAIN, ("plan file",), "bad-plan", ("unknown key",),
           prepare=replaced(PLAN, "timeout", f'"\\n{PWNED}\\u001b" = 1\ntimeout')),
    Attack("a plan that is a pipe", ("explain", "pipe.toml"), ("PLAN",), "bad-plan", ("not a file that can be read",),
           prepare=lambda folder: os.mkfifo(folder / "pipe.toml")),
    Attack("a plan that is a folder", ("run", "folder.toml"), ("PLAN",), "bad-plan", ("not a file",),
           prepare=lambda folder: (folder / "folder.toml").mkdir()),
    Attack("a plan that links to itself", ("run", "loop.toml"), ("PLAN",), "bad-plan", ("not a file",),
           prepare=lambda folder: (folder / "loop.toml").symlink_to("loop.toml")),
    Attack("a plan that never ends", ("run", "/dev/zero"), ("PLAN",), "bad-plan", ("not a file",)),
    Attack("a plan of 10 000 letters", ("run", LONG + ".toml"), ("PLAN",), "bad-plan", ("not a file",)),
    Attack("a plan named as a command", ("run", f"\n{PWNED}"), ("PLAN",), "unknown-name", ("Unknown plan",)),
    Attack("a plan in a process of its own", EXPLAIN, ("plan file",), "bad-plan", ("nested",), process=True,
           prepare=written(PLAN, "a = " + "[" * 5000 + "]" * 5000)),
]

NUMBERS = [
    changed("two repeats", "repeats = 3", "repeats = 2", "plan timing.repeats", "timing.repeats", "greater than or equal to 3"),
    changed("repeats of 10^40", "repeats = 3", f"repeats = {MANY}", "plan timing.repeats", "less than or equal to 10000", MANY),
    changed("repeats of 5000 hex digits", "repeats = 3", f"repeats = 0x{'f' * 5000}", "plan timing.repeats", "timing.repeats"),
    changed("warmup of 10^40", "warmup = 1", f"warmup = {MANY}", "plan timing.warmup", "less than or equal to 1000"),
    changed("warmup that is a date", "warmup = 1", "warmup = 2026-01-01", "plan timing.warmup", "valid integer"),
    changed("timing that is a number", "[timing]\nwarmup = 1\nrepeats = 3", "timing = 3", "plan timing", "timing"),
    changed("a timeout of 1e300", "timeout = 60.0", "timeout = 1e300", "plan timeout", "less than or equal to 1728000"),
    changed("a timeout that is no number", "timeout = 60.0", "timeout = nan", "plan timeout", "finite"),
    changed("a timeout of 10^400", "timeout = 60.0", f"timeout = 1{'0' * 400}", "plan timeout", "timeout"),
    changed("samples of 10^40", "samples = 4", f"samples = {MANY}", "plan fidelity.samples", "less than or equal to 50000"),
    changed("reference samples of 10^40", "samples = 4", f"samples = 4\nreference_samples = {MANY}", "plan fidelity.reference_samples",
            "less than or equal to 50000"),
    changed("forced samples below none", "samples = 4", "samples = 4\nforced_samples = -1", "plan fidelity.forced_samples", "equal to 0"),
    changed("a batch of fidelity of 10^40", "samples = 4", f"samples = 4\nbatch = {MANY}", "plan fidelity.batch", "equal to 50000"),
    changed("a batch of 10^18", "batch = 2", f"batch = 1{'0' * 18}", "plan cells.batch", "less than or equal to 50000"),
    changed("a batch that is a word", "batch = 2", 'batch = "min"', "plan cells.batch", "'min'"),
    cells("samples of a block of 10^40", f"samples = {MANY}", "samples", "less than or equal to 50000"),
    cells("a random seed of 10^40", f"random_seed = {MANY}", "random_seed", "less than or equal to 9223372036854775807"),
    cells("a priority of -10^40", f"priority = -{MANY}", "priority", "greater than or equal to -9223372036854775808"),
    cells("quality that is a number", "quality = 1e300", "quality", "valid boolean"),
    *(cells(f"{name} of {value}", f"sampling = {{ {name} = {value} }}", f"sampling.{name}", f"sampling.{name}", bound)
      for name, value, bound in (
          ("cfg_scale", "1e300", "equal to 1000"), ("cfg_scale", "-inf", "finite"), ("cfg_interval", MANY, "equal to 1000000"),
          ("temperature", "1e300", "equal to 1000"), ("top_k", MANY, "equal to 10000000"), ("top_p", "1.0000001", "equal to 1"),
          ("steps", MANY, "equal to 10000"), ("diffusion_steps", MANY, "equal to 10000"))),
    *(top(f"quality.{name} of {value}", f"quality.{name} = {value}", f"quality.{name}", f"quality.{name}", bound)
      for name, value, bound in (("samples", MANY, "equal to 50000"), ("batch", MANY, "equal to 50000"), ("batch", "0", "equal to 1"))),
    anchor("an anchor of 1e300", "anchor.expected", "1000000000", expected=1e300),
    anchor("a tolerance of 1e300", "anchor.tolerance", "1000000000", tolerance=1e300),
    anchor("no tolerance", "anchor.tolerance", "greater than 0", tolerance=-1.0),
    top("10^40 cases", f"max_cases = {MANY}", "max_cases", "less than or equal to 1000000"),
]
BUDGETS = [
    *(changed(f"a budget of {name}", '"1/2"', text, "plan cells.budgets", *says, slug="bad-budget")
      for name, text, says in (
          ("1e-9999999", '"1e-9999999"', ("outside (0, 1]",)), ("1e9999999", '"1e9999999"', ("outside (0, 1]",)),
          ("1e-999999999999999999999999", '"1e-999999999999999999999999"', ("outside (0, 1]",)),
          ("1e-9999999 as a number", "1e-9999999", ("0.0 is outside",)), ("10^40", MANY, ("outside (0, 1]",)),
          ("nothing", '""', ("not a number",)),
           ("minus a half", "-0.5", ("outside (0, 1]",)), ("1e-7", "1e-7", ("1/1000000",)),
          ("letters of another script", '"١٢"', ("outside (0, 1]",)), ("a command", f'"\\n{PWNED}"', ("is not a number",)))),
    changed("a budget of 90 digits", '"1/2"', f'"0.{"3" * 90}"', "plan cells.budgets", "streaming 1/3", slug="", code=0),
    changed("a budget without a number", '"1/2"', "inf", "plan cells.budgets", "finite"),
    changed("a budget of a boolean", '"1/2"', "true", "plan cells.budgets", "cells.0.budgets.0"),
    changed("a million cases", '["1/2"]', "[" + "0.5, " * 1000 + "]\ncodecs = [" + '"native", ' * 1000 + "]",
            "plan cells", "2000003 cases", "at most 10000", "max_cases = 2000003"),
    changed("ten thousand budgets", '["1/2"]', "[" + "0.5, " * 10_000 + "]", "plan cells.budgets", "at most 1000 items"),
    changed("ten thousand methods", '["streaming"]', "[" + '"streaming", ' * 10_000 + "]", "plan cells.methods", "at most 1000 items"),
    changed("ten thousand broken methods", '["streaming"]', "[" + "3, " * 10_000 + "]", "plan cells.methods", "cells.0.methods"),
    cells("ten thousand codecs", "codecs = [" + '"native", ' * 10_000 + "]", "codecs", "at most 1000 items"),
    changed("ten thousand blocks", "[[cells]]", "[[cells]]\nmodel = 'dot'\nmethods = ['full']\n" * 10_000 + "[[cells]]", "plan cells",
            "at most 1000 items"),
    changed("a budget that is a method without a name", '"1/2"', "{ sinks = 1 }", "plan cells.budgets.name", "budgets.0.name"),
    changed("a budget of a method unknown", '"1/2"', '{ name = "nobody" }', "plan cells.budgets.name", "'nobody'", slug="unknown-name"),
    *(changed(f"a budget of the codec {text}", '"1/2"', f'{{ name = "full", codec = {text} }}', "plan cells.budgets.name", says,
              slug="unknown-name") for text, says in (('"int9"', "'int9'"), ("8", "'8'"))),
    changed("a variant of a budget of 10 000 letters", '"1/2"', f'{{ name = "full", variant = "{LONG}" }}', "plan cells.budgets.variant",
            "at most 40 characters"),
]
TEXTS = [
    changed("a name of 10 000 letters", '"dots"', f'"{LONG}"', "plan name", "at most 100 characters"),
    changed("a name that leaves its folder", '"dots"', '"../../thesis"', "plan name", "pattern"),
    changed("a name that is a command", '"dots"', f'"\\n{PWNED}"', "plan name", "pattern"),
    top("a description of 100 000 letters", f'description = "{LONG * 10}"', "description", "at most 10000 characters"),
    top("timing that is an array", 'description = ["a"]', "description", "valid string"),
    top("a trial of its own", 'trial = "none"', "trial", "'model' or 'case'"),
    top("unsupported that is neither", 'on_unsupported = "ignore"', "on_unsupported", "'error' or 'unsupported'"),
    anchor("an anchor of 10 000 letters", "anchor.metric", "100", metric=LONG),
    anchor("an anchor without a source", "anchor.source", "anchor.source", source=""),
    top("an anchor that is a number", "anchor = 3", "anchor", "anchor"),
    top("quality that is a text", 'quality = "good"', "quality", "quality"),
    top("seeds of quality unknown", 'quality.seeds = "s3"', "quality.seeds", "Unknown seed subset", slug="unknown-name"),
    top("a preset of quality unknown", 'quality.preset = "eyes"', "quality.preset", "preset", slug="unknown-name"),
    changed("fidelity that is an array", '[fidelity]\nseeds = "s64"\nsamples = 4', "fidelity = []", "plan fidelity", "fidelity"),
    changed("seeds of 10 000 letters", '"s64"', f'"{LONG}"', "plan fidelity.seeds", "at most 100 characters"),
    top("metrics that are no list", 'metrics = "contrast"', "metrics", "valid list"),
    top("a metric with an option that it has not", 'metrics = [{ name = "lpips", weights = "a" }]', "metrics", "option",
        slug="unknown-name"),
    changed("sequential of the wrong type", "samples = 4", 'samples = 4\nsequential = "maybe"',
            "plan fidelity.sequential", "valid boolean"),
    changed("a model of 10 000 letters", '"dot"', f'"{LONG}"', "plan cells.model", "at most 100 characters"),
    changed("a model that is a command", '"dot"', f'"\\n{PWNED}"', "plan cells.model", "Unknown model", slug="unknown-name"),
    changed("a method of 10 000 letters", '"streaming"', f'"{LONG}"', "plan cells.methods", "at most 100 characters"),
    changed("a method in a table of 10 000 letters", '"streaming"', f'{{ name = "{LONG}" }}', "plan cells.methods.name",
            "at most 100 characters"),
    changed("a variant that is a command", '"streaming"', f'{{ name = "streaming", variant = "\\n{PWNED}" }}', "plan cells.methods.variant",
            "pattern"),
    changed("a knob of 10^40", '"streaming"', f'{{ name = "streaming", sinks = {MANY} }}', "plan cells.methods", "1e+15", slug="bad-knob"),
    changed("a knob of 5000 hex digits", '"streaming"', f'{{ name = "streaming", sinks = 0x{"f" * 5000} }}', "plan cells.methods",
            "not finite", slug="bad-knob"),
    changed("a knob that is a table", '"streaming"', '{ name = "streaming", sinks = { a = [[[1]]] } }', "plan cells.methods", "sinks",
            slug="bad-knob"),
    cells("a codec of 10 000 letters", f'codecs = ["{LONG}"]', "codecs", "at most 100 characters"),
    cells("a preset of sampling unknown", 'sampling = "hot"', "sampling", "sampling preset", slug="unknown-name"),
    cells("sampling that is an array", "sampling = []", "sampling", "sampling"),
    cells("a dtype unknown", 'dtype = "float8"', "dtype", "'float32', 'bfloat16' or 'float16'"),
    cells("an engine unknown", 'engine = "warp"', "engine", "'eager'"),
]
FILES = [
    *(Attack(f"weights that are a {what}", EXPLAIN, ("plan cells.weights", "weights file"), "bad-checkpoint", (WEIGHTS,),
             prepare=special(make))
      for what, make in (("pipe", "pipe"), ("folder", "folder"), ("socket", "socket"), ("device", "/dev/zero"), ("loop", "dot.safetensors"),
                         ("piece of this process", "/proc/self/mem"))),
    *(Attack(f"weights that are {what}", EXPLAIN, ("weights file",), "bad-checkpoint", (WEIGHTS,), prepare=with_weights(content))
      for what, content in (
          ("empty", b""), ("noise", NOISE), ("half a zip", b"PK\x03\x04" + b"\0" * 50), ("a huge header", b"\xff" * 8 + b"{" + b"x" * 100),
          ("deep JSON", (100_000).to_bytes(8, "little") + b'{"a":' * 20_000))),
    cells("NUL in the path of weights of a decoder", 'decoder_weights = "a\\u0000b"', "decoder_weights", "decoder_weights", "pattern"),
    changed("a path of weights of 10 000 letters", 'weights = "dot.safetensors"', f'weights = "{LONG}"', "plan cells.weights", "4096"),
    changed("a name of weights of 3000 letters", 'weights = "dot.safetensors"', f'weights = "{"x" * 3000}"', "plan cells.weights",
            "file that can be read", slug="bad-checkpoint"),
    changed("NUL in the path of weights", 'weights = "dot.safetensors"', 'weights = "a\\u0000b"', "plan cells.weights", "pattern"),
    top("NUL in the path of a plug-in", 'plugins = ["a\\u0000.py"]', "plugins", "plugins.0", "pattern"),
    top("a path of a plug-in of 10 000 letters", f'plugins = ["{LONG}"]', "plugins", "plugins.0", "4096"),
    top("a thousand plug-ins", f"plugins = {['dot.py'] * 1000}", "plugins", "at most 100 items"),
    *(top(f"NUL in the folder of {name}", f'metrics = [{{ name = "{name}", weights = "a\\u0000b" }}]', "metrics", "pattern")
      for name in ("clip_score", "dpg", "image_reward", "hpsv2")),
    top("NUL in the path of an extractor", 'quality.extractor_weights = "a\\u0000b"', "quality.extractor_weights", "pattern"),
    top("NUL in the path of a reference", 'quality.reference = "a\\u0000b"', "quality.reference", "pattern"),
    changed("NUL in the path of prompts", "samples = 4", 'samples = 4\nprompts = "a\\u0000b"', "plan fidelity.prompts", "pattern"),
    changed("prompts for a model of classes", "samples = 4", 'samples = 4\nprompts = "own64"', "plan fidelity.prompts", "is given prompts"),
    changed("a path of prompts of 10 000 letters", "samples = 4", f'samples = 4\nprompts = "{LONG}"', "plan fidelity.prompts", "4096"),
    *(Attack(f"prompts that are {what}", EXPLAIN, ("prompts file", "plan fidelity.prompts"), "bad-plan", (f"{PLAN}:", says),
             prepare=with_prompts(name, content))
      for what, name, content, says in (
          ("noise", "mine", NOISE, "is not text"), ("nothing", "mine", "", "has 0 prompts"), ("a blank", "mine", "\n", "mine:1 is empty"),
          ("a command", "mine", f"{PWNED}\n", "reads captions of its own world"), ("no caption", "mine", "a star star", "is no caption"),
          ("a line of 100 000 letters", "mine", LONG * 10, "has 100000 characters"), ("deep", "m.jsonl", "[" * 9000, "is nested more than"),
          ("half a task", "m.jsonl", '{"tag": "colors"', "is cut off"), ("a task of 10^400", "m.jsonl", "1" + "0" * 400, "a table"),
          ("captions of nobody", "m.json", '{"annotations": [{}]}', "lacks annotations.0.image_id"), ("a blank file", "dpg/1.txt", " ",
           "is empty"),
          ("an empty folder", "dpg/none.md", "", "has 0 prompts"))),
    Attack("a reference that is noise", EXPLAIN, ("reference file", "plan quality.reference"), "bad-checkpoint", ("no reference",),
           prepare=with_reference),
]
DECODERS = [
    cells("decoders that are a text", 'decoders = "jacobi"', "decoders", "cells.0.decoders"),
    cells("no decoder at all", "decoders = []", "decoders", "at least 1 item"),
    cells("ten thousand decoders", "decoders = [" + '"jacobi", ' * 10_000 + "]", "decoders", "at most 1000 items"),
    cells("a decoder that is a command", f'decoders = ["\\n{PWNED}"]', "decoders", "Unknown decoder", slug="unknown-name"),
    cells("a decoder of 10 000 letters", f'decoders = ["{LONG}"]', "decoders", "at most 100 characters"),
    cells("a decoder without a name", "decoders = [{ window = 3 }]", "decoders.name", "decoders.0.name"),
    cells("a variant of a decoder that is a command", f'decoders = [{{ name = "jacobi", variant = "\\n{PWNED}" }}]', "decoders.variant",
          "pattern"),
    cells("a window of 10^40", f"decoders = [{{ name = 'jacobi', window = {MANY} }}]", "decoders", "window", slug="bad-knob"),
    cells("a window of 5000 hex digits", f"decoders = [{{ name = 'jacobi', window = 0x{'f' * 5000} }}]", "decoders", "window",
          slug="bad-knob"),
    cells("a window that is not finite", "decoders = [{ name = 'jacobi', window = inf }]", "decoders", "not finite", slug="bad-knob"),
    cells("proposals of 10 000 letters", f"decoders = [{{ name = 'jacobi', proposals = '{LONG}' }}]", "decoders", "is unknown",
          slug="bad-knob"),
    cells("a coupling of 10 000 letters", f"decoders = [{{ name = 'scd', coupling = '{LONG}' }}]", "decoders", "is unknown",
          slug="bad-knob"),
]
ROWS = [*WHOLE, *NUMBERS, *BUDGETS, *TEXTS, *FILES, *DECODERS]
