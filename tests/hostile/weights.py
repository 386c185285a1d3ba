"""Published weights: indices that name their files, what a source said of them, and folders of a Llama that are not what they seem."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from support.llamas import FACTS, publish

from .attack import PWNED, Attack
from .ground import Preparation, both, edited, replaced, written

INDEX, CONFIG = "w/model.safetensors.index.json", "llama/config.json"
VERIFY = ("weights", "verify", "var-d16", "--weights")


def index(name: str, text: str) -> Attack:
    """A try with a broken index of weights."""
    return Attack(f"an index {name}", (*VERIFY, "w"), "bad-checkpoint", prepare=written(INDEX, text))


def llama(name: str, prepare: Preparation, *says: str) -> Attack:
    """A try with a published folder of which one thing was changed. Nothing is written."""
    return Attack(f"a Llama {name}", ("new", "model", "painter", "--from-hf", "llama", *FACTS), "bad-checkpoint", says,
                  prepare=both(lambda folder: publish(folder / "llama"), prepare))


def piped(folder: Path) -> None:
    """A pipe in the place of the configuration."""
    (folder / CONFIG).unlink()
    os.mkfifo(folder / CONFIG)


class Intruder:
    """An object whose pickle writes a file outside the ground when it is loaded without protection."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (Path("../others/thesis.txt"), "pwned")


def saved(content: object) -> Preparation:
    """Return a preparation that saves a checkpoint as ``w.pth``."""
    return lambda folder: torch.save(content, folder / "w.pth")


ROWS = [
    Attack("a checkpoint that is a pickle of code", (*VERIFY, "w.pth"), "bad-checkpoint", ("could run code",),
           prepare=saved({"trans.weight": torch.zeros(2), "args": Intruder()})),
    Attack("a checkpoint with missing keys", (*VERIFY, "w.pth"), "bad-checkpoint", ("tensors missing",),
           prepare=saved({"word_embed.weight": torch.zeros(2)})),
    index("nested without end", '{"weight_map":' + "[" * 100_000),
    index("of somebody else's file", '{"weight_map": {"a": "../../others/thesis.txt"}}'),
    index("of the system's file", '{"weight_map": {"a": "/etc/passwd"}}'), index("of NUL", '{"weight_map": {"a": "a\\u0000b"}}'),
    index("of half a letter", '{"weight_map": {"a": "\\ud800"}}'), index("of a command", f'{{"weight_map": {{"a": "\\n{PWNED}"}}}}'),
    Attack("an index that is a pipe, converted", ("weights", "convert", "var-d16", "--to", "made", "--weights", "w"), "bad-checkpoint",
           prepare=both(written("w/x", ""), lambda folder: os.mkfifo(folder / INDEX))),
    Attack("notes of endless bytes", (*VERIFY, "w.pth"), "bad-checkpoint", (".published.json",), prepare=both(
        written("w.pth", b"PK\x03\x04" + b"\0" * 50), written(".published.json", '{"files": {"w.pth": {"bytes": 1e999}}}'))),
    llama("with a config that is a pipe", piped, "no ordinary file"),
    llama("with a config nested without end", written(CONFIG, "[" * 100_000)),
    llama("of ten million layers", edited(CONFIG, lambda data: {**data, "num_hidden_layers": 10**7}), "at most 1000"),
    llama("of another width", edited(CONFIG, lambda data: {**data, "hidden_size": 64}), "of another shape"),
    llama("of endless rotations", replaced(CONFIG, '"rope_theta": 500.0', '"rope_theta": 1e999'), "rope_theta"),
    llama("whose index names somebody else's file", written(
        "llama/model.safetensors.index.json", json.dumps({"weight_map": {"a": "../../others/thesis.txt"}})), "is not an index"),
]
