"""Sample batches: npz files of images, as the ADM evaluator reads them, and files of statistics of real images.

``arr_0`` holds the images, uint8 (N, H, W, 3); ``arr_1``, if any, their class labels. ``mu`` and ``sigma`` are mean and covariance of
Inception features of a whole data set, ``mu_s`` and ``sigma_s`` of its spatial features. Images are read and written in pieces through
the zip file, so that 50 000 of them need no memory. Every size that a header states is compared with the size of the file before
memory is allocated.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
import torch
from torch import Tensor

from ...core.errors import BadCheckpoint
from ...core.files import is_readable
from .image_bytes import as_bytes

IMAGES, LABELS, MANIFEST = "arr_0", "arr_1", "manifest.json"
MEAN, COVARIANCE = ("mu", "mu_s"), ("sigma", "sigma_s")
PIECE = 2**24  # bytes of images in memory at a time
LARGEST_IMAGE = 2**28  # bytes
WIDEST = 4096  # features of statistics
DEFLATE = 1032  # largest ratio of the zip format's compression
REMEDY = "It must hold arr_0 (uint8 images, N×H×W×3), or mu (F,) and sigma (F, F). Write or fetch it again."


@dataclass(frozen=True)
class Moments:
    """Mean (F,) float32 and covariance (F, F) float64 of features, the types that torch-fidelity computes."""

    mean: Tensor
    covariance: Tensor

    def __len__(self) -> int:
        return len(self.mean)


class SampleBatch:
    """An npz file of images, of statistics, or of both.

    Every method raises BadCheckpoint for a damaged or another file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._reading():
            if not is_readable(self.path):
                raise ValueError("it is not an ordinary readable file")
            with ZipFile(self.path) as archive:
                self._members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            self._shape = self._header(IMAGES)[0] if IMAGES in self._members else (0, 0, 0, 3)
            if IMAGES not in self._members and not {MEAN[0], COVARIANCE[0]} <= self._members.keys():
                raise ValueError(f"it has {', '.join(sorted(self._members)[:5]) or 'no arrays'}, neither arr_0 nor mu and sigma")
            if IMAGES in self._members:
                self._check_images()

    def _check_images(self) -> None:
        shape, dtype, fortran = self._header(IMAGES)
        if dtype != np.uint8 or fortran or len(shape) != 4 or shape[3] != 3:
            raise ValueError(f"arr_0 is {dtype} of shape {shape}, not uint8 (N, H, W, 3)")
        if not shape[0] or not 0 < prod(shape[1:]) <= LARGEST_IMAGE:
            raise ValueError(f"arr_0 of shape {shape} has no image, or too large ones")

    def __len__(self) -> int:
        return self._shape[0]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the images."""
        return self._shape[2], self._shape[1]

    @property
    def shown_size(self) -> str:
        """The size as ``256×256``."""
        return f"{self.size[0]}×{self.size[1]}"

    @property
    def note(self) -> str:
        """Empty: nothing in the file is left out."""
        return ""

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the zip's checksums, because the file is large."""
        content = sorted((member.filename, member.CRC, member.file_size) for member in self._members.values())
        return hashlib.sha256(repr(content).encode()).hexdigest()[:12]

    def digest(self, part: slice) -> str:
        """Return a hash of some images, by the checksum of all."""
        return f"{self._members[IMAGES].CRC:08x}-{self._shape}-{part.start}-{part.stop}"

    @cached_property
    def labels(self) -> tuple[int, ...] | None:
        """The class of each image, if the file states it."""
        with self._reading():
            if LABELS not in self._members:
                return None
            shape, dtype, _ = self._header(LABELS)
            if shape != (len(self),) or dtype.kind not in "iu":
                return None
            return tuple(self._array(LABELS).tolist())

    def moments(self, spatial: bool = False) -> Moments | None:
        """Return the statistics in the file, of spatial features on request, or None."""
        names = MEAN[spatial], COVARIANCE[spatial]
        with self._reading():
            if not set(names) <= self._members.keys():
                return None
            shape, square = (self._header(name)[0] for name in names)
            if len(shape) != 1 or not 0 < shape[0] <= WIDEST or square != 2 * shape:
                raise ValueError(f"{names[0]} is {shape}, {names[1]} {square}")
            mean, covariance = (torch.from_numpy(self._array(name)) for name in names)
            if not (mean.isfinite().all() and covariance.isfinite().all()):
                raise ValueError(f"{names[0]} or {names[1]} is not finite")
            return Moments(mean.float(), covariance.double())

    def stream(self, parts: Sequence[slice]) -> Iterator[tuple[slice, Tensor]]:
        """Yield the images of some parts in order, in pieces of RGB bytes (B, 3, H, W), each with its part.

        The whole file is read, so that its checksum is verified."""
        with self._reading(), ZipFile(self.path) as archive, archive.open(self._members[IMAGES]) as file:
            each = prod(_npy_header(file)[0][1:])
            at, step = 0, max(1, PIECE // each)
            for part in (*parts, slice(len(self), len(self))):
                while at < part.start:
                    at += len(_exactly(file, min(step, part.start - at) * each)) // each
                while at < part.stop:
                    images = torch.frombuffer(_exactly(file, min(step, part.stop - at) * each), dtype=torch.uint8)
                    images = images.view(-1, *self._shape[1:])
                    at += len(images)
                    yield part, images.permute(0, 3, 1, 2).contiguous()
            if file.read(1):
                raise ValueError("it has more bytes than its header states")

    def images(self) -> Iterator[Tensor]:
        """Yield all images in order, in pieces of RGB bytes (B, 3, H, W)."""
        return (images for _, images in self.stream([slice(0, len(self))]))

    def _header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
        """Return shape, type and whether in Fortran's order.

        Raises ValueError for a size that the file cannot have.
        """
        member = self._members[name]
        with ZipFile(self.path) as archive, archive.open(member) as file:
            shape, fortran, dtype = _npy_header(file)
            before = file.tell()
        stated = prod(shape) * dtype.itemsize
        if dtype.hasobject or before + stated != member.file_size or member.file_size > DEFLATE * max(1, member.compress_size):
            raise ValueError(f"{name} states {dtype} of shape {shape}, which {member.file_size - before} bytes do not hold")
        return shape, dtype, fortran

    def _array(self, name: str) -> np.ndarray:
        """Return a small array whose header was checked."""
        with ZipFile(self.path) as archive, archive.open(self._members[name]) as file:
            return np.lib.format.read_array(file, allow_pickle=False)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # bytes of any origin: the reader may fail in any way
            problem = str(error).strip(".") or type(error).__name__
            raise BadCheckpoint(f"{str(self.path)!r} is not a batch of images or statistics, or a damaged one: {problem}.",
                                remedy=REMEDY) from error


def _exactly(file: IO[bytes], count: int) -> bytearray:
    """Return the next bytes. Raises ValueError for fewer."""
    data = bytearray(file.read(count))
    if len(data) != count:
        raise ValueError("it ends early")
    return data


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and type in the header of an npy file, and move the file to the end of the header."""
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    return read[np.lib.format.read_magic(file)](file)


class SampleWriter:
    """Writes a sample batch image by image: a manifest, images and labels.

    The manifest, ``manifest.json`` in the zip file, comes first, so that the first bytes of the file name this package. A context manager,
    which completes the file unless there is an error."""

    def __init__(self, path: Path, count: int, labels: Sequence[int], manifest: Mapping[str, Any]) -> None:
        self._archive, self._count, self._labels = ZipFile(path, "w", ZIP_STORED), count, labels
        self._file: IO[bytes] | None = None
        self._written = 0
        with self._abandoned_on_error():
            self._archive.writestr(ZipInfo(MANIFEST), json.dumps({"tool": "cachemark", **manifest}))

    def add(self, images: Tensor) -> None:
        """Write images (B, 3, H, W), bytes or in [−1, 1]. Raises Unsupported for images that are not finite."""
        pixels = as_bytes(images, self._written).permute(0, 2, 3, 1).contiguous().numpy()
        if self._file is None:
            self._file = self._archive.open(ZipInfo(f"{IMAGES}.npy"), "w", force_zip64=True)
            header = {"descr": "|u1", "fortran_order": False, "shape": (self._count, *pixels.shape[1:])}
            np.lib.format.write_array_header_1_0(self._file, header)
        self._file.write(pixels.data)
        self._written += len(pixels)

    def __enter__(self) -> SampleWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._abandoned_on_error():
            if kind is not None:
                self._abandon()
            else:
                self._close()

    @contextmanager
    def _abandoned_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Close the incomplete file, which its owner removes.

        Where the disk is full, the archive would fail to write its end when Python frees it, and print that."""
        file, self._archive.fp = self._archive.fp, None
        with suppress(OSError):
            if file is not None:
                file.close()

    def _close(self) -> None:
        """Write the labels, and end the file."""
        assert self._file is not None
        assert self._written == self._count == len(self._labels), (self._written, self._count, len(self._labels))
        self._file.close()
        with self._archive.open(ZipInfo(f"{LABELS}.npy"), "w") as file:
            np.lib.format.write_array(file, np.asarray(self._labels, np.int64))
        self._archive.close()


def in_turns(labels: Sequence[int], seeds: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return labels and seeds with the classes in turns, so that each split of the Inception score has all of them."""
    seen, ranks = Counter[int](), list[int]()
    for label in labels:
        ranks.append(seen[label])
        seen[label] += 1
    order = sorted(range(len(labels)), key=ranks.__getitem__)
    return [labels[number] for number in order], [seeds[number] for number in order]
