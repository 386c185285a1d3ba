"""The image size that weights were trained for, if their shapes do not determine it.

LlamaGen at 256 and 384 pixels have the same shapes, and so have Lumina-mGPT at 768 and 1024: the wrong file would load and make bad
images. The size is read from the metadata of converted weights, else from training arguments in the file, else from the end of its name
(``c2i_B_384.pt``) or its folder's.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..core.errors import BadCheckpoint
from . import checkpoints
from .protocol import PublishedFile

STATED, TRAINED = "pixels", "image_size"  # in the metadata of converted weights, and in the arguments of LlamaGen's training
NUMBER = re.compile(r"[0-9]{1,5}")
IN_NAME = re.compile(r"[_-](256|384|512|768|1024)$")


def stated_size(path: str | Path) -> tuple[int, str]:
    """Return pixels along a side and the source of that number; (0, "") if unknown."""
    remarks = checkpoints.remarks(path)
    for name, who in ((STATED, "was stated when it was converted"), (TRAINED, "its training says")):
        if NUMBER.fullmatch(str(remarks.get(name, ""))):
            return int(remarks[name]), who
    source = Path(path).absolute()
    names = [source.name] if source.is_dir() else [source.stem, source.parent.name]
    match = next(filter(None, map(IN_NAME.search, names)), None)
    return (int(match[1]), "its name says") if match else (0, "")


def check(file: PublishedFile, path: str | Path, size: int = 0) -> int:
    """Return the trained pixels along a side, 0 if shapes determine them. Raises BadCheckpoint.

    It is raised if ``size``, or the stated size without it, is not the model's.
    """
    if not file.pixels:
        return 0
    pixels, who = (size, "you state") if size else stated_size(path)
    if pixels and pixels != file.pixels:
        raise BadCheckpoint(
            f"{str(path)!r} is for images of {pixels} pixels, as {who}; this model makes {file.pixels}, and their shapes are the same.",
            remedy=f"Use {file.name}. If this is for {file.pixels} pixels after all, state it: cachemark weights convert … "
                   f"--pixels {file.pixels}.")
    return pixels
