"""A reference batch of guided-diffusion's evaluation suite: an npz file of real images and of the statistics of many more.

``arr_0`` holds the images, uint8 (N, H, W, 3); ``mu`` and ``sigma`` are mean and covariance of the 2048 Inception features over the
whole data set. The file for ImageNet at 256×256 has 10 000 images, 2 GB, which are therefore read in pieces; its ``mu_s`` and
``sigma_s``, for a spatial FID, are not used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from ..core.errors import BadCheckpoint

IMAGES = "arr_0.npy"
REMEDY = "Fetch it again; it must hold arr_0 (uint8 images), mu and sigma."
CHUNK = 100  # images that are read at a time


class ReferenceBatch:
    """The file at ``path``. Every method raises BadCheckpoint where it is damaged or of another kind."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with ZipFile(self.path) as archive, archive.open(IMAGES) as file:
                self.shape = _header(file)
                content = sorted((member.filename, member.CRC, member.file_size) for member in archive.infolist())
        except Exception as error:  # bytes of any origin: the reader may fail in any way
            raise self._bad(error) from error
        self.fingerprint = hashlib.sha256(repr(content).encode()).hexdigest()[:12]  # of the zip's own checksums: it is long

    def __len__(self) -> int:
        return self.shape[0]

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean (F,) float32 and covariance (F, F) float64, the types that torch-fidelity computes itself."""
        try:
            with np.load(self.path, allow_pickle=False) as file:
                mean, covariance = torch.from_numpy(file["mu"]).float(), torch.from_numpy(file["sigma"]).double()
            if mean.dim() != 1 or covariance.shape != (len(mean), len(mean)):
                raise ValueError(f"mu is {tuple(mean.shape)}, sigma {tuple(covariance.shape)}")
            if not (mean.isfinite().all() and covariance.isfinite().all()):
                raise ValueError("mu or sigma is not finite")
        except Exception as error:  # bytes of any origin: the reader may fail in any way
            raise self._bad(error) from error
        return mean, covariance

    def images(self) -> Iterator[Tensor]:
        """The images in order, in parts (B, 3, H, W) of uint8."""
        try:
            with ZipFile(self.path) as archive, archive.open(IMAGES) as file:
                count, *size = _header(file)
                for start in range(0, count, CHUNK):
                    wanted = min(CHUNK, count - start)
                    data = bytearray(file.read(wanted * int(np.prod(size))))
                    yield torch.frombuffer(data, dtype=torch.uint8).view(wanted, *size).permute(0, 3, 1, 2).contiguous()
                if file.read(1):
                    raise ValueError("there are more bytes than its header says")
        except Exception as error:  # bytes of any origin: the reader may fail in any way
            raise self._bad(error) from error

    def _bad(self, error: Exception) -> BadCheckpoint:
        said = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        return BadCheckpoint(f"{str(self.path)!r} is no reference batch, or a damaged one: {said.strip('.') or type(error).__name__}.",
                             remedy=REMEDY)


def _header(file: IO[bytes]) -> tuple[int, ...]:
    """The shape that an npy file of images gives for itself; the file stands behind its header then."""
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, turned, dtype = read[np.lib.format.read_magic(file)](file)
    if dtype != np.uint8 or turned or len(shape) != 4 or shape[3] != 3:
        raise ValueError(f"arr_0 is {dtype} of shape {shape}, not uint8 (N, H, W, 3)")
    return shape
