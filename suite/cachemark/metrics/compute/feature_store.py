"""Features of images that were scored before, by content, in the user's cache folder.

A file holds the features of a part of a set, named by a hash of its images and of the network. The oldest files are removed when the
folder grows beyond :data:`LARGEST`. Without a writable folder nothing is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Protocol

from torch import Tensor

from ...core.errors import Unsupported
from ...core.files import cache_folder
from .extractor import Extractor
from .image_features import ImageFeatures

PART = 500  # images per file, the most that an interruption loses
VERSION = 1  # raised when the same files give other pixels
LARGEST = 8 * 2**30  # bytes of the folder


class ImageSource(Protocol):
    """A folder or a file of images."""

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def shown_size(self) -> str: ...

    @property
    def note(self) -> str: ...

    def __len__(self) -> int: ...

    def digest(self, part: slice) -> str: ...

    def stream(self, parts: Sequence[slice]) -> Iterator[tuple[slice, Tensor]]: ...


def features_of(
    source: ImageSource, extractor: Extractor, device: str, reach: Callable[[int], None] = lambda images: None
) -> ImageFeatures:
    """Return the features of all images; ``reach`` is called with the number that is done.

    Rows have the bits of a quality pass. Raises Unsupported for a single image, and the errors of the source."""
    if len(source) < 2:
        raise Unsupported(f"{source.path} has one image; FID needs at least 2.", remedy="Add images.")
    parts = [slice(start, min(start + PART, len(source))) for start in range(0, len(source), PART)]
    files = {part.start: _file(source, part, extractor) for part in parts}
    found = {start: features for start, file in files.items() if (features := ImageFeatures.load(file, extractor)) is not None}
    for (start, _), pieces in groupby(source.stream([part for part in parts if part.start not in found]),
                                      lambda item: (item[0].start, item[0].stop)):
        found[start] = ImageFeatures.of(_counted(pieces, start, reach), extractor, device=device)
        with suppress(OSError):
            found[start].save(files[start])
    _shrink(cache_folder() / "features")
    return ImageFeatures.joined([found[part.start] for part in parts])


def _file(source: ImageSource, part: slice, extractor: Extractor) -> Path:
    return cache_folder() / "features" / f"{VERSION}-{source.digest(part)}.{extractor.name}.safetensors"


def _counted(pieces: Iterator[tuple[slice, Tensor]], done: int, reach: Callable[[int], None]) -> Iterator[Tensor]:
    for _, images in pieces:
        yield images
        done += len(images)
        reach(done)


def _shrink(folder: Path) -> None:
    """Remove the oldest files of a folder that is too large."""
    with suppress(OSError):
        files = sorted((status.st_mtime, status.st_size, entry.path) for entry in os.scandir(folder) if (status := entry.stat()))
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= LARGEST:
                return
            os.unlink(path)
            total -= size
