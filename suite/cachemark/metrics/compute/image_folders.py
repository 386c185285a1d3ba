"""Folders of images that any tool has written: their files in order, and their pixels in parts."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ...core.errors import Unsupported
from ...core.files import is_readable
from ...core.wording import count
from .sample_batches import PIECE

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
MODES = ("1", "L", "P", "RGB", "YCbCr")  # of Pillow, whose conversion to RGB is exact enough to score
SIXTEEN = ("I;16", "I;16B", "I;16L", "I;16N", "I")
ORIENTATION = 0x0112  # EXIF tag
GENERATED = re.compile(r"\d{5,}-label\d+-seed\d+$")  # end of the name of a generated image, behind its case


@dataclass(frozen=True)
class ImageFolder:
    """The images of a folder and its subfolders, all of ``size`` (width, height).

    ``names`` are relative paths. With subfolders, which usually are classes, the first image of each comes first, then the second of
    each: splits of the Inception score then contain all classes. ``left_out``: number of other files by ending."""

    path: Path
    names: tuple[str, ...]
    size: tuple[int, int]
    left_out: tuple[tuple[str, int], ...] = ()

    @classmethod
    def open(cls, path: str | Path) -> ImageFolder:
        """List the images of a folder.

        Raises Unsupported if it is not a folder, has no image, or has several sizes.
        """
        folder = Path(path)
        if not os.path.lexists(folder):
            raise Unsupported(f"{folder} does not exist.", remedy="Use a folder of images, or an npz file.")
        if not folder.is_dir():
            raise Unsupported(f"{folder} is not a folder of images or an npz file.", remedy="Use a folder of images, or an npz file.")
        names, others = _listed(folder)
        if not names:
            raise Unsupported(f"{folder} has no images.", remedy=f"Use a folder of files that end with {', '.join(ENDINGS)}.")
        size = _size(folder / names[0])
        for name in names:
            if (other := _size(folder / name)) != size:
                raise Unsupported(f"{folder} has images of several sizes: {names[0]} is {_by(size)}, {name} is {_by(other)}.",
                                  remedy=resizing(folder, size))
        return cls(folder, tuple(names), size, tuple(sorted(others.items())))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shown_size(self) -> str:
        """The size as ``256×256``."""
        return _by(self.size)

    @property
    def classes(self) -> tuple[str, ...]:
        """The subfolders with images; empty without subfolders."""
        return tuple(sorted({str(PurePosixPath(name).parent) for name in self.names} - {"."}))

    @property
    def note(self) -> str:
        """Which files are read from subfolders and which are not read, if any."""
        inside = sum("/" in name for name in self.names)
        parts = [f"{self.path}: {count(inside, 'image')} in {count(len(self.classes), 'subfolder')}"] if inside else []
        if self.left_out:
            listed = ", ".join(f"{number} {ending}" for ending, number in self.left_out)
            parts.append(f"{self.path}: {count(sum(dict(self.left_out).values()), 'file')} not read ({listed})")
        return "; ".join(parts)

    def stream(self, parts: Sequence[slice]) -> Iterator[tuple[slice, Tensor]]:
        """Yield the images of some parts in order, in pieces of RGB bytes (B, 3, H, W), each with its part.

        Raises Unsupported for a damaged file, and for pixels that have no single conversion to RGB.
        """
        step = max(1, PIECE // (3 * self.size[0] * self.size[1]))
        for part in parts:
            names = self.names[part]
            for start in range(0, len(names), step):
                yield part, self.images(names[start : start + step])

    def images(self, names: Sequence[str]) -> Tensor:
        """Return images by name as RGB bytes (B, 3, H, W)."""
        pixels = [_pixels(self.path / name) for name in names]
        for name, image in zip(names, pixels, strict=True):
            size = image.shape[2], image.shape[1]
            if size != self.size:
                raise Unsupported(f"{self.path / name} is {_by(size)} after its EXIF rotation, not {self.shown_size}.",
                                  remedy="Apply the rotation, e.g.: mogrify -auto-orient")
        return torch.stack(pixels)

    def digest(self, part: slice) -> str:
        """Return a hash of the files of some images. Raises Unsupported for a file that cannot be read."""
        total = hashlib.sha256()
        for name in self.names[part]:
            try:
                total.update(hashlib.blake2b((self.path / name).read_bytes()).digest())
            except OSError as error:
                raise _damaged(self.path / name, error) from error
        return total.hexdigest()

    @cached_property
    def _by_stem(self) -> dict[str, str]:
        """Names by name without ending. Raises Unsupported if two are equal."""
        names = dict[str, str]()
        for name in self.names:
            if (other := names.setdefault(_stem(name), name)) != name:
                raise Unsupported(f"{self.path} has {other} and {name}, which differ in their ending only.", remedy="Rename one of them.")
        return names

    @property
    def _by_seed(self) -> dict[str, str]:
        """Names by number, label and seed, if all are of generated images of one case; else nothing."""
        found = [GENERATED.search(_stem(name)) for name in self.names]
        names = {match[0]: name for match, name in zip(found, self.names, strict=True) if match}
        return names if len(names) == len(found) else {}

    def partners(self, other: ImageFolder) -> list[tuple[str, str]]:
        """Return pairs of names that are equal up to their ending; empty if no name is in both folders.

        Files of generated images begin with their case, which may differ. Raises Unsupported if some images have no partner, or if partners
        differ in size."""
        if {_stem(name) for name in self.names} & {_stem(name) for name in other.names}:
            mine, theirs = self._by_stem, other._by_stem
        else:
            mine, theirs = self._by_seed, other._by_seed
            if not mine.keys() & theirs.keys():
                return []
        for larger, smaller, folder in ((mine, theirs, other), (theirs, mine, self)):
            if alone := sorted(larger[stem] for stem in larger.keys() - smaller.keys()):
                more = f" and {len(alone) - 1} more" if len(alone) > 1 else ""
                raise Unsupported(f"{self.path} has {count(len(self), 'image')} and {other.path} {len(other)}: {folder.path} lacks "
                                  f"{alone[0]}{more}.",
                                  remedy="Remove images without a partner, or add --unpaired to compare the sets alone.")
        if self.size != other.size:
            raise Unsupported(f"Images of {self.path} are {self.shown_size}, images of {other.path} {other.shown_size}.",
                              remedy=resizing(other.path, self.size))
        return [(name, theirs[stem]) for stem, name in mine.items()]


@dataclass(frozen=True)
class Resized:
    """Images of a folder, resized to ``side`` pixels: bicubic, antialiased, each channel rounded.

    Pillow's, as clean-fid resizes for Inception, which rounds nothing."""

    images: ImageFolder
    side: int

    path = property(lambda self: self.images.path)
    size = property(lambda self: (self.side, self.side))
    shown_size = property(lambda self: _by(self.size))
    note = property(lambda self: self.images.note)

    def __len__(self) -> int:
        return len(self.images)

    def digest(self, part: slice) -> str:
        """Return a hash of some images and of the side."""
        return f"{self.images.digest(part)}-bicubic{self.side}"

    def stream(self, parts: Sequence[slice]) -> Iterator[tuple[slice, Tensor]]:
        """Yield the images of some parts, as :meth:`ImageFolder.stream`."""
        for part, pixels in self.images.stream(parts):
            yield part, torch.stack([torch.stack([self._channel(channel) for channel in image]) for image in pixels])

    def _channel(self, pixels: Tensor) -> Tensor:
        resized = Image.fromarray(pixels.numpy().astype(np.float32)).resize(self.size, Image.Resampling.BICUBIC)
        return torch.from_numpy(np.asarray(resized).clip(0, 255).round().astype(np.uint8))


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def _listed(folder: Path) -> tuple[list[str], Counter[str]]:
    """Return the relative paths of images, one of each subfolder at a time, and other files by ending; hidden ones are ignored."""
    by_folder, others, seen = list[list[str]](), Counter[str](), set[tuple[int, int]]()
    for place, folders, files in os.walk(folder, followlinks=True):
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen:  # a link to a folder around it
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = sorted(name for name in files if not name.startswith("."))
        inside = Path(place).relative_to(folder).as_posix()
        by_folder.append([name if inside == "." else f"{inside}/{name}" for name in files if name.lower().endswith(ENDINGS)])
        others.update(Path(name).suffix or "without ending" for name in files if not name.lower().endswith(ENDINGS))
    ranked = sorted((rank, number, name) for number, names in enumerate(by_folder) for rank, name in enumerate(names))
    return [name for _, _, name in ranked], others


def _size(file: Path) -> tuple[int, int]:
    """Return width and height, after the rotation that the file states."""
    if not is_readable(file):
        raise _damaged(file, "not an ordinary readable file")
    try:
        with Image.open(file) as image:
            turned = image.format != "PNG" and image.getexif().get(ORIENTATION, 1) >= 5  # of a PNG it may need all pixels
            return (image.height, image.width) if turned else image.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _damaged(file, error) from error


def _pixels(file: Path) -> Tensor:
    """Return the pixels as RGB bytes (3, H, W), upright, 16 bits as the nearest of 8.

    Raises Unsupported for a damaged file, for transparency, and for a color space without one conversion."""
    try:
        with Image.open(file) as image:
            if (problem := _problem(image)) is not None:
                raise Unsupported(f"{file} {problem[0]}.", remedy=problem[1])
            upright = ImageOps.exif_transpose(image)
            if upright.mode in SIXTEEN:
                deep = np.asarray(upright).astype(np.int64)
                if deep.min() < 0 or deep.max() > 65535:
                    raise Unsupported(f"{file} has gray values {deep.min()} to {deep.max()}, not 16 bits.", remedy="Scale them to 8 bits.")
                rgb = np.repeat(((deep + 128) // 257).astype(np.uint8)[..., None], 3, -1)
            else:
                rgb = np.array(upright.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _damaged(file, error) from error
    return torch.from_numpy(rgb).permute(2, 0, 1)


def _problem(image: Image.Image) -> tuple[str, str] | None:
    """Return why an image has no single conversion to RGB, and the fix."""
    frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)  # the other pictures of an MPO are previews
    if frames > 1:
        return f"has {frames} frames", "Write each as a file."
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        least = image.convert("RGBA").getchannel("A").getextrema()[0]
        if least != 255:
            return "has transparent pixels (alpha channel)", "Put it on a ground: mogrify -background white -alpha remove"
        return None
    if image.mode not in (*MODES, *SIXTEEN):
        return f"has the color mode {image.mode}", "Convert it to RGB, with its color profile if it has one."
    return None


def _damaged(file: Path, error: Exception | str) -> Unsupported:
    lines = str(error).splitlines() or [type(error).__name__]
    return Unsupported(f"{file} is not an image, or a damaged one: {lines[0][:200]}.", remedy="Write it again, or remove it.")


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"


def resizing(folder: Path, size: tuple[int, int]) -> str:
    """Return how to give all images of a folder one size."""
    return f"Resize them, e.g.: mogrify -path resized -resize '{size[0]}x{size[1]}!' {folder}/*"
