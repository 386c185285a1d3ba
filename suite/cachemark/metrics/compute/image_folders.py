"""Folders of images that any tool has written: their files in order, and their pixels in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...core.errors import Unsupported
from ...core.wording import count

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


@dataclass(frozen=True)
class ImageFolder:
    """The images of a folder by name, all of ``size`` (width, height)."""

    path: Path
    names: tuple[str, ...]
    size: tuple[int, int]

    @classmethod
    def open(cls, path: str | Path) -> ImageFolder:
        """List the images of a folder, sorted by name.

        Raises Unsupported if it is not a folder, has no image, or has several sizes.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise Unsupported(f"{folder} is not a folder.", remedy="Use a folder of images.")
        names = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in ENDINGS and not file.name.startswith("."))
        if not names:
            raise Unsupported(f"{folder} has no images.", remedy=f"Use a folder of files that end with {', '.join(ENDINGS)}.")
        size = _size(folder / names[0])
        for name in names:
            if (other := _size(folder / name)) != size:
                raise Unsupported(f"{folder} has images of several sizes: {names[0]} is {_by(size)}, {name} is {_by(other)}.",
                                  remedy=resizing(folder, size))
        return cls(folder, tuple(names), size)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shown_size(self) -> str:
        """The size as ``256×256``."""
        return _by(self.size)

    def parts(self, most: int) -> Iterator[Tensor]:
        """Yield the images in order, ``most`` at a time, as RGB bytes (B, 3, H, W).

        Raises Unsupported for a damaged file.
        """
        for start in range(0, len(self), most):
            yield self.images(self.names[start : start + most])

    def images(self, names: Sequence[str]) -> Tensor:
        """Return images by name as RGB bytes (B, 3, H, W)."""
        return torch.stack([_pixels(self.path / name) for name in names])

    def partners(self, other: ImageFolder) -> bool:
        """Return whether the images of both folders are pairs by name; False if no name is in both.

        Raises Unsupported if some images have no partner, or if partners differ in size."""
        common = set(self.names) & set(other.names)
        if not common:
            return False
        for larger, smaller in ((self, other), (other, self)):
            if alone := sorted(set(larger.names) - common):
                more = f" and {len(alone) - 1} more" if len(alone) > 1 else ""
                raise Unsupported(f"{self.path} has {count(len(self), 'image')} and {other.path} {len(other)}: {smaller.path} lacks "
                                  f"{alone[0]}{more}.", remedy="Remove images without a partner, or rename the files of one folder to "
                                  "compare the sets alone.")
        if self.size != other.size:
            raise Unsupported(f"Images of {self.path} are {self.shown_size}, images of {other.path} {other.shown_size}.",
                              remedy=resizing(other.path, self.size))
        return True


def _size(file: Path) -> tuple[int, int]:
    try:
        with Image.open(file) as image:
            return image.size
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise _damaged(file, error) from error


def _pixels(file: Path) -> Tensor:
    try:
        with Image.open(file) as image:
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> Unsupported:
    return Unsupported(f"{file} is not an image, or a damaged one: {str(error).splitlines()[0][:200]}.",
                       remedy="Write it again, or remove it.")


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"


def resizing(folder: Path, size: tuple[int, int]) -> str:
    """Return how to give all images of a folder one size."""
    return f"Resize them, e.g.: mogrify -path resized -resize '{size[0]}x{size[1]}!' {folder}/*"
