"""Features of scored images, and values of sets, by content, in the user's cache folder.

A file holds the features of a part of a set, named by a hash of its images and of the network, or the values of a set with their
intervals, named by a hash of the features on both sides and of the settings. The oldest files are removed when the
folder grows beyond :data:`LARGEST`. Without a writable folder nothing is kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Protocol

from torch import Tensor

from ...core.errors import Unsupported
from ...core.files import cache_folder, read_json, replacing
from .extractor import Extractor
from .image_features import ImageFeatures
from .quality_intervals import QualityInterval

PART = 500  # images per file, the most that an interruption loses
VERSION = 1  # raised when the same files give other pixels
VALUES = 1  # raised when the same features give other values or intervals
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
    layers, missing = list[Tensor](), list[slice]()
    for part in parts:
        if (kept := ImageFeatures.load(files[part.start], extractor)) is None:
            missing.append(part)
        else:
            _put(layers, kept, part.start, len(source))
    for (start, _), pieces in groupby(source.stream(missing), lambda item: (item[0].start, item[0].stop)):
        computed = ImageFeatures.of(_counted(pieces, start, reach), extractor, device=device)
        _put(layers, computed, start, len(source))
        with suppress(OSError):
            computed.save(files[start])
    _shrink(_folder())
    return ImageFeatures(extractor.name, *layers)


def kept_values(key: str, compute: Callable[[], dict[str, QualityInterval]]) -> dict[str, QualityInterval]:
    """Return values that were computed before for a hash of their inputs, or compute and keep them."""
    file = _folder() / f"{VALUES}-{key}.json"
    with suppress(Exception):  # a missing file, or bytes of any origin
        return {name: QualityInterval(*map(float, ends)) for name, ends in read_json(file).items()}
    values = compute()
    with suppress(OSError), replacing(file) as part:
        part.write_text(json.dumps({name: [*map(repr, ends)] for name, ends in values.items()}))
    return values


def _put(layers: list[Tensor], part: ImageFeatures, start: int, count: int) -> None:
    """Copy a part to its rows of a set of ``count`` images, to hold no image's features twice."""
    for number, layer in enumerate(part.layers):
        if number == len(layers):
            layers.append(layer.new_empty(count, layer.shape[1]))
        layers[number][start : start + len(part)] = layer


def _folder() -> Path:
    return cache_folder() / "features"


def _file(source: ImageSource, part: slice, extractor: Extractor) -> Path:
    return _folder() / f"{VERSION}-{source.digest(part)}.{extractor.name}.safetensors"


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
