"""Plans that are broken, huge, nested without end, or name invalid files."""

from .attack import PWNED, Attack
from .ground import PLAN, Preparation, both, replaced, written

EXPLAIN = ("explain", PLAN, "--plugin", "dot.py")
WEIGHTS_LINE, NAME = 'weights = "dot.safetensors"', 'name = "dots"'
LONG = "x" * 10_000
NOISE = bytes(range(256)) * 8


def whole(name: str, content: str | bytes, *says: str) -> Attack:
    """Return an attack with another file in the place of the plan."""
    return Attack(name, EXPLAIN, "bad-plan", says, prepare=written(PLAN, content))


def changed(name: str, original: str, replacement: str, *says: str, slug: str = "bad-plan") -> Attack:
    """Return an attack with one change in the good plan."""
    return Attack(name, EXPLAIN, slug, says, prepare=replaced(PLAN, original, replacement))


def with_weights(name: str, prepare: Preparation) -> Attack:
    """Return an attack with other weights of the bundled model, which reads them before it runs."""
    return Attack(f"weights that are {name}", EXPLAIN, "bad-checkpoint", ("dot.safetensors",),
                  prepare=both(replaced(PLAN, 'model = "dot"', 'model = "tiny-llamagen"'),
                               lambda folder: (folder / "dot.safetensors").unlink(), prepare))


def prompts(name: str, content: str | bytes, says: str) -> Attack:
    """Return an attack with odd prompts for the bundled text-to-image model."""
    return Attack(f"prompts that are {name}", EXPLAIN, "bad-plan", (f"{PLAN}:", says), prepare=both(
        replaced(PLAN, 'model = "dot"', 'model = "tiny-t2i"'), replaced(PLAN, WEIGHTS_LINE, ""),
        replaced(PLAN, "samples = 4", 'samples = 4\nprompts = "mine"'), written("mine", content)))


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 1234\n"
TWICE = "[[cells]]\nmodel = 'dot'\nmethods = ['full']\n" * 2 + "[[cells]]"


ROWS = [
    whole("arrays nested 5000 deep", "a = " + "[" * 5000 + "]" * 5000, "nested too deep"),
    changed("a parameter nested 450 deep", '"streaming"', f'{{ name = "streaming", sinks = {"[" * 450 + "]" * 450} }}', "methods.0",
            "nested more than 20 deep"),
    changed("repeats of 5000 hex digits", "repeats = 3", f"repeats = 0x{'f' * 5000}", "timing.repeats"),
    changed("a timeout that is no number", "timeout = 60.0", "timeout = nan", "finite"),
    changed("a budget of 1e-9999999", '"1/2"', '"1e-9999999"', "outside (0, 1]", slug="bad-budget"),
    changed("a budget that is a command", '"1/2"', f'"\\n{PWNED}"', "is not a number", slug="bad-budget"),
    changed("a million cases", '["1/2"]', "[" + "0.5, " * 1000 + "]\ncodecs = [" + '"native", ' * 1000 + "]",
            "2000003 cases", "at most 10000", "max_cases = 2000003"),
    changed("ten thousand blocks", "[[cells]]", "[[cells]]\nmodel = 'dot'\nmethods = ['full']\n" * 10_000 + "[[cells]]",
            "at most 1000 items"),
    changed("a parameter of 5000 hex digits", '"streaming"', f'{{ name = "streaming", sinks = 0x{"f" * 5000} }}', "not finite",
            slug="bad-parameter"),
    whole("a pointer of Git LFS", LFS, "Git LFS"),
    *(Attack(f"a plan {name}", EXPLAIN, "bad-plan", (says,), prepare=lambda folder, encoding=encoding: (folder / PLAN).write_bytes(
        (folder / PLAN).read_text().encode(encoding)))  # as an editor may save it
      for name, says, encoding in (("in UTF-16", "UTF-16", "utf-16"), ("with a byte order mark", "byte order mark", "utf-8-sig"))),
    changed("a budget in Arabic digits", '"1/2"', '"\u0661/\u0662"', "is not a number", slug="bad-budget"),
    changed("two equal blocks", "[[cells]]", TWICE, "cells", "block 2 is the same as block 1"),
    with_weights("a pointer of Git LFS", written("dot.safetensors", LFS)),
    with_weights("a device", lambda folder: (folder / "dot.safetensors").symlink_to("/dev/zero")),
    with_weights("a huge header", written("dot.safetensors", b"\xff" * 8 + b"{" + b"x" * 100)),
    prompts("noise", NOISE, "is not text"), prompts("a line of 100 000 letters", LONG * 10, "has 100000 characters"),
    Attack("a reference that is noise", EXPLAIN, "bad-checkpoint", ("no reference",), prepare=both(
        replaced(PLAN, NAME, f'{NAME}\nquality = {{ preset = "scene", reference = "noise" }}'), written("noise", NOISE))),
]
