"""The image size that weights were trained for, if their shapes do not determine it.

LlamaGen at 256 and 384 pixels have the same shapes, and so have Lumina-mGPT at 768 and 1024: the wrong file would load and make bad
images. The size is read from training arguments in the file, else from the end of its name (``c2i_B_384.pt``) or its folder's.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..core.errors import BadCheckpoint
from . import checkpoints
from .protocol import PublishedFile

NUMBER = re.compile(r"[0-9]{1,5}")
IN_NAME = re.compile(r"[_-](256|384|512|768|1024)$")


def stated_size(path: str | Path) -> tuple[int, str]:
    """Return pixels along a side and the source of that number; (0, "") if unknown."""
    argument = str(checkpoints.training_arguments(path).get("image_size", ""))
    if NUMBER.fullmatch(argument):
        return int(argument), "its training arguments"
    source = Path(path).absolute()
    names = [source.name] if source.is_dir() else [source.stem, source.parent.name]
    match = next(filter(None, map(IN_NAME.search, names)), None)
    return (int(match[1]), "its name") if match else (0, "")


def check(file: PublishedFile, path: str | Path) -> None:
    """Raise BadCheckpoint if weights were trained for images of another size than the model's."""
    if not file.pixels:
        return
    pixels, source = stated_size(path)
    if pixels and pixels != file.pixels:
        raise BadCheckpoint(f"{str(path)!r} is for images of {pixels} pixels by {source}; this model makes {file.pixels}, and their "
                            f"shapes are the same.", remedy=f"Use {file.name}; if only the name is wrong, rename the file.")
