"""Prompt scores: does a picture show what its caption asks for? The axes of GenEval, on captioned procedural scenes.

Ghosh et al., "GenEval: An Object-Focused Framework for Evaluating Text-to-Image Alignment" (2023), asks an object detector about
photographs. Here the packaged :class:`~cachemark.models.tiny.tiny_reader.TinyReader` is asked what a picture shows. It must choose even
where there is nothing to see, so that guessing gives one in six for an object or a colour, one in three for a count, one in four for a
position.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from ...models import checkpoints
from ...models.tiny import tiny_reader
from ...models.tiny.captions import AXES, asked
from ...models.tiny.tiny_reader import TinyReader
from ...models.weights import packaged
from .image_bytes import as_bytes

FIGURES = {  # by metric the axes that a caption may ask for and that must all be right
    "prompt_score": tuple(AXES), "prompt_object": ("object",), "prompt_colour": ("colour",), "prompt_count": ("count",),
    "prompt_position": ("position",), "prompt_ground": ("texture", "ground_colour"),
}


def identity() -> str:
    """The part of a case's identity that the reader decides: the hash of its weights."""
    return checkpoints.sha256(packaged(f"{tiny_reader.NAME}.safetensors"))


class PromptScores:
    """Scores the pictures of a list of captions. The reader is loaded once; it reads the bytes of a picture, as anybody would who is sent
    its file."""

    def __init__(self, captions: Sequence[str], *, device: str = "cpu") -> None:
        requests = [asked(caption) for caption in captions]
        self._wanted = {axis: torch.tensor([_or_any(getattr(request, axis)) for request in requests]) for axis in AXES}
        self._reader = _reader(device)
        self._last: tuple[Tensor, dict[str, Tensor]] | None = None

    def __call__(self, name: str, images: Tensor, labels: Sequence[int]) -> Tensor:
        """The value called ``name`` of images (n, 3, 64, 64) in [−1, 1] whose captions are those of ``labels``: (n,) fp64 on the CPU, 1
        where all that the caption asks for on the value's axes is right."""
        if self._last is None or self._last[0] is not images:  # values ask one after another about the same images
            read = [self._reader.read(as_bytes(part)) for part in images.split(64)]
            self._last = images, {axis: torch.cat([part[axis] for part in read]).cpu() for axis in AXES}
        right = [self._right(axis, self._last[1][axis], labels) for axis in FIGURES[name]]
        return torch.stack(right).all(0).double()

    def _right(self, axis: str, read: Tensor, labels: Sequence[int]) -> Tensor:
        expected = self._wanted[axis][list(labels)]
        return (read == expected) | (expected == ANY)


ANY = -1  # in the place of what a caption leaves out


def _or_any(index: int | None) -> int:
    return ANY if index is None else index


@cache
def _reader(device: str) -> TinyReader:
    return tiny_reader.load(packaged(f"{tiny_reader.NAME}.safetensors"), device=device)
