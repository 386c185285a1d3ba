"""Images as one npz file, as the evaluators of image generators read them: ``arr_0``, uint8, (N, H, W, 3).

50 000 images of 256×256 are 9.8 GB, so they are written as they come: an npz file is a zip of npy files, and an npy file is a short
header and the numbers in a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np

from ..core.errors import Unsupported
from ..core.files import replacing

MEMBER = "arr_0"


def write(path: str | Path, images: Iterable[Any], count: int, *, compressed: bool = False) -> Path:
    """Write ``count`` images, given in batches (B, H, W, 3) of uint8 (arrays, or tensors on the CPU), to ``path``, and return the path.

    One batch is in memory at a time. The file has its name only when it is whole. Raises Unsupported for another type or shape, for
    a batch of another size than the first, and for more or fewer images than ``count``.
    """
    kind = ZIP_DEFLATED if compressed else ZIP_STORED
    with (replacing(whole := Path(path)) as part, ZipFile(part, "w", kind) as archive,
          archive.open(f"{MEMBER}.npy", "w", force_zip64=True) as file):
        _fill(file, images, count)
    return whole


def _fill(file: IO[bytes], images: Iterable[Any], count: int) -> None:
    """The header, and the images behind it."""
    size: tuple[int, ...] = ()
    written = 0
    for given in images:
        batch = np.asarray(given)
        _check(batch, size, written)
        if not size:
            size = batch.shape[1:]
            np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (count, *size)})
        written += len(batch)
        if written > count:
            raise _other_count(f"more than {written - 1}", count)
        file.write(np.ascontiguousarray(batch).data)
    if written != count or not count:
        raise _other_count(str(written), count)


def _check(batch: np.ndarray, size: tuple[int, ...], before: int) -> None:
    if batch.dtype != np.uint8 or batch.ndim != 4 or batch.shape[3] != 3 or not len(batch):
        raise Unsupported(f"An npz file holds images (B, H, W, 3) of uint8, got {batch.dtype} of shape {batch.shape}.",
                          remedy="Turn tensors (B, 3, H, W) round with .permute(0, 2, 3, 1), and values in [−1, 1] into bytes first.")
    if size and batch.shape[1:] != size:
        raise Unsupported(f"Image {before} has the shape {batch.shape[1:]}, those before it {size}.",
                          remedy="The images of one file have one size.")


def _other_count(given: str, count: int) -> Unsupported:
    return Unsupported(f"{given} images were given for a file of {count}.", remedy="Give as many as the file is to hold, and at least one.")
