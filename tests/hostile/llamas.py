"""Folders of a published Llama that are not what they seem, and odd statements about one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from support.llamas import FACTS, publish

from .attack import PWNED, Attack
from .ground import both, edited, replaced, written

NEW = ("new", "model", "painter", "--from-hf", "llama")
INDEX, CONFIG, TOKENIZER = "llama/model.safetensors.index.json", "llama/config.json", "llama/tokenizer.json"
DIGITS, DEEP = "9" * 5_000, "[" * 100_000
Preparation = Callable[[Path], object]


def there(folder: Path) -> Path:
    """A preparation: the whole folder."""
    return publish(folder / "llama")


def broken(kind: str, name: str, prepare: Preparation, slug: str, *says: str) -> Attack:
    """A try with a folder of which one thing was changed. Nothing is written."""
    return Attack(f"{kind} {name}", (*NEW, *FACTS), (kind,), slug, says, prepare=both(there, prepare))


def config(**changes: object) -> Preparation:
    return edited(CONFIG, lambda data: {key: value for key, value in {**data, **changes}.items() if value is not None})


def gone(name: str) -> Preparation:
    return lambda folder: (folder / name).unlink()


def wrong(option: str, value: str, said: str, slug: str = "", name: str = "") -> Attack:
    """A try with one odd statement about a whole folder."""
    return Attack(f"{option} {name or value[:20]}", (*NEW, *FACTS, option, value), (option,), slug, (said,), prepare=there)


FOLDERS = [
    Attack("--from-hf that is not there", (*NEW, *FACTS), ("--from-hf",), "bad-checkpoint", ("cannot be read: No such file",)),
    Attack("--from-hf of 5000 letters", ("new", "model", "painter", "--from-hf", "x" * 5_000, *FACTS), ("--from-hf",), "bad-checkpoint"),
    Attack("--from-hf of a command", ("new", "model", "painter", "--from-hf", f"\n{PWNED}", *FACTS), ("--from-hf",), "bad-checkpoint"),
    Attack("--from-hf of a method", ("new", "method", "painter", "--from-hf", "llama", *FACTS), ("--from-hf",), "", ("describes a model",)),
    Attack("--from-hf alone", NEW, ("--from-hf",), "", ("needs --first-code, --codes and --grid",), prepare=there),
    Attack("--from-hf under a name that is taken", ("new", "model", "tiny-var", "--from-hf", "llama", *FACTS), ("--from-hf",), "bad-plugin",
           ("is no name",), prepare=there),
    Attack("--from-hf under a name of code", ("new", "model", '"); import os', "--from-hf", "llama", *FACTS), ("--from-hf",), "bad-plugin",
           ("is no name",), prepare=there),
    Attack("--from-hf where the package is", (*NEW, *FACTS), ("--from-hf",), "bad-plugin", ("File exists",),
           prepare=both(there, lambda folder: (folder / "cachemark-painter").mkdir())),
    broken("--from-hf", "without config.json", gone("llama/config.json"), "bad-checkpoint", "config.json cannot be read"),
    broken("--from-hf", "with a config that is a pipe", both(gone(CONFIG), lambda folder: os.mkfifo(folder / CONFIG)), "bad-checkpoint",
           "no ordinary file"),
    broken("--from-hf", "with a config nested without end", written(CONFIG, DEEP), "bad-checkpoint"),
    broken("--from-hf", "with a config of a list", written(CONFIG, "[]"), "bad-checkpoint", "a table is expected"),
    broken("--from-hf", "of a diffusion model", written(CONFIG, '{"_class_name": "UNet2DConditionModel"}'), "bad-checkpoint",
           "lacks num_hidden_layers"),
    broken("--from-hf", "with a size of 5000 digits", replaced(CONFIG, '"vocab_size": 64', f'"vocab_size": {DIGITS}'), "bad-checkpoint"),
    broken("--from-hf", "with a size that is a word", config(vocab_size=f"\n{PWNED}"), "bad-checkpoint", "vocab_size ="),
    broken("--from-hf", "of ten million layers", config(num_hidden_layers=10**7), "bad-checkpoint", "at most 1000"),
    broken("--from-hf", "of no layer", config(num_hidden_layers=0), "bad-checkpoint", "at least 1"),
    broken("--from-hf", "of another width", config(hidden_size=64), "bad-checkpoint", "of another shape"),
    broken("--from-hf", "of ten million channels", config(hidden_size=10**7), "bad-checkpoint", "of another shape"),
    broken("--from-hf", "of endless rotations", replaced(CONFIG, '"rope_theta": 500.0', '"rope_theta": 1e999'), "bad-checkpoint",
           "rope_theta"),
    broken("--from-hf", "whose shard is missing", gone("llama/model-00002-of-00002.safetensors"), "bad-checkpoint", "1 of the 2 files"),
    broken("--from-hf", "whose index names somebody else's file",
           written(INDEX, json.dumps({"weight_map": {"a": "../../others/thesis.txt"}})), "bad-checkpoint", "is not an index"),
    broken("--from-hf", "without weights", both(gone(INDEX), *(gone(f"llama/model-0000{n}-of-00002.safetensors") for n in (1, 2))),
           "bad-checkpoint"),
    broken("--from-hf", "whose tokenizer is cut off", written(TOKENIZER, '{"version"'), "bad-checkpoint", "is no tokenizer"),
    broken("--from-hf", "without a tokenizer", gone(TOKENIZER), "bad-checkpoint", "has no tokenizer.json"),
]  # fmt: skip
STATED = [
    wrong("--first-code", "41", "are none of 64 ids", "unsupported"), wrong("--first-code", "-1", "0<=x"),
    wrong("--codes", "25", "are none of 64 ids", "unsupported"), wrong("--codes", DIGITS, "not a valid integer", name="of 5000 digits"),
    wrong("--grid", "0", "1<=x"), wrong("--grid", "1000000", "x<=1024"),
    wrong("--begin", f"\n{PWNED}", "has no token", "bad-checkpoint", "of a command"),
    wrong("--image", "x" * 5_000, "has no token", "bad-checkpoint", "of 5000 letters"),
    wrong("--longest", "0", "1<=x"), wrong("--cfg-scale", "nan", "not a number"), wrong("--cfg-scale", "1e999", "x<=1000"),
    Attack("test model with absent weights", ("test", "model", "dot.py", "--weights", "nowhere"), ("--weights",), "", code=1,
           says=("nowhere",)),
]
ROWS = [*FOLDERS, *STATED]
