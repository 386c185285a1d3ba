"""Published weights: indices that name their files, and the answers of a source about them."""

import os
from pathlib import Path
from typing import Any

import torch

from .attack import PWNED, Attack
from .ground import both, preparation, written

INDEX = "w/model.safetensors.index.json"
VERIFY = ("weights", "verify", "var-d16", "--weights")


def index(name: str, text: str) -> Attack:
    """Return an attack with a broken index of weights."""
    return Attack(f"an index {name}", (*VERIFY, "w"), "bad-checkpoint", prepare=written(INDEX, text))


class Intruder:
    """An object whose pickle writes a file outside the ground when it is loaded without protection."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (Path("../others/thesis.txt"), "pwned")


saved = preparation(lambda folder, content: torch.save(content, folder / "w.pth"))
ROWS = [
    Attack("a layer with a number of 5000 digits", (*VERIFY, "w.pth"), "bad-checkpoint", prepare=saved({
        f"blocks.{'9' * 5_000}.attn.proj.weight": torch.zeros(2)})),
    Attack("a checkpoint that is a pickle of code", (*VERIFY, "w.pth"), "bad-checkpoint", ("could run code",),
           prepare=saved({"trans.weight": torch.zeros(2), "args": Intruder()})),
    index("nested without end", '{"weight_map":' + "[" * 100_000),
    index("of somebody else's file", '{"weight_map": {"a": "../../others/thesis.txt"}}'),
    index("of NUL", '{"weight_map": {"a": "a\\u0000b"}}'),
    index("of a command", f'{{"weight_map": {{"a": "\\n{PWNED}"}}}}'),
    Attack("an index that is a pipe", (*VERIFY, "w"), "bad-checkpoint",
           prepare=both(written("w/x", ""), lambda folder: os.mkfifo(folder / INDEX))),
]
