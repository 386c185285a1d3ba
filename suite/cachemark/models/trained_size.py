"""The size of the images that weights were trained for, where their shapes do not tell it.

LlamaGen at 256 and at 384 pixels have the same names and shapes, and so have Lumina-mGPT at 768 and 1024: nothing fails where the wrong one
is taken, and its images are bad. So what the weights say is asked: what was stated when they were converted, else the arguments of the
training that the file holds, else the end of its name (``c2i_B_384.pt``) or of its folder's.
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
    """Pixels along a side, and who says so; 0 and nothing where nobody does. The weights at ``path`` can be read."""
    remarks = checkpoints.remarks(path)
    for name, who in ((STATED, "was stated when it was converted"), (TRAINED, "its training says")):
        if NUMBER.fullmatch(str(remarks.get(name, ""))):
            return int(remarks[name]), who
    source = Path(path).absolute()
    names = [source.name] if source.is_dir() else [source.stem, source.parent.name]
    match = next(filter(None, map(IN_NAME.search, names)), None)
    return (int(match[1]), "its name says") if match else (0, "")


def check(file: PublishedFile, path: str | Path, size: int = 0) -> int:
    """The pixels along a side that are ``size`` or told. Raises BadCheckpoint where they are not those of the model, unless the model's
    are stated; of a file whose shapes tell its size nothing is asked, and the answer is 0."""
    if not file.pixels:
        return 0
    pixels, who = (size, "you state") if size else stated_size(path)
    if pixels and pixels != file.pixels:
        raise BadCheckpoint(
            f"{str(path)!r} is for images of {pixels} pixels, as {who}; this model makes {file.pixels}, and their shapes are the same.",
            remedy=f"Give {file.name}. If this is for {file.pixels} pixels after all, state it: cachemark weights convert … "
                   f"--pixels {file.pixels}.")
    return pixels
