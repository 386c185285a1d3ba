"""Prompt scores: does an image show what its caption describes, on the axes of GenEval?

Ghosh et al., "GenEval: An Object-Focused Framework for Evaluating Text-to-Image Alignment" (2023), asks an object detector about
photographs. Here the bundled :class:`~cachemark.models.tiny.tiny_reader.TinyReader` classifies captioned procedural scenes. It always
chooses, so guessing gives 1/6 for an object or a color, 1/3 for a count, 1/4 for a position.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from ...models import checkpoints
from ...models.tiny import tiny_reader
from ...models.tiny.captions import AXES, parsed
from ...models.tiny.tiny_reader import TinyReader
from ...models.weights import packaged
from .image_bytes import as_bytes

FIGURES = {  # the axes of a caption that must all be right, by metric
    "prompt_score": tuple(AXES), "prompt_object": ("object",), "prompt_colour": ("colour",), "prompt_count": ("count",),
    "prompt_position": ("position",), "prompt_ground": ("texture", "ground_colour"),
}


def identity() -> str:
    """Return the hash of the reader's weights."""
    return checkpoints.sha256(packaged(f"{tiny_reader.NAME}.safetensors"))


class PromptScores:
    """Scores the images of a list of captions, from their bytes; the reader is loaded once."""

    def __init__(self, captions: Sequence[str], *, device: str = "cpu") -> None:
        requests = [parsed(caption) for caption in captions]
        self._expected = {axis: torch.tensor([_or_any(getattr(request, axis)) for request in requests]) for axis in AXES}
        self._reader = _reader(device)
        self._last: tuple[Tensor, dict[str, Tensor]] | None = None

    def __call__(self, name: str, images: Tensor, labels: Sequence[int]) -> Tensor:
        """Return 1 or 0 for images (n, 3, 64, 64) in [−1, 1] of the captions ``labels``, (n,) fp64 on the CPU.

        1 if everything in the caption on the axes of the metric ``name`` is right.
        """
        if self._last is None or self._last[0] is not images:  # metrics are called one after another with the same images
            read = [self._reader.read(as_bytes(part)) for part in images.split(64)]
            self._last = images, {axis: torch.cat([part[axis] for part in read]).cpu() for axis in AXES}
        right = [self._right(axis, self._last[1][axis], labels) for axis in FIGURES[name]]
        return torch.stack(right).all(0).double()

    def _right(self, axis: str, read: Tensor, labels: Sequence[int]) -> Tensor:
        expected = self._expected[axis][list(labels)]
        return (read == expected) | (expected == ANY)


ANY = -1  # for an axis that a caption does not mention


def _or_any(index: int | None) -> int:
    return ANY if index is None else index


@cache
def _reader(device: str) -> TinyReader:
    return tiny_reader.load(packaged(f"{tiny_reader.NAME}.safetensors"), device=device)
