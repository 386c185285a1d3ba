"""Images on their way to a feature extractor: bytes, RGB, finite."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from ..core.errors import Unsupported


class ImageDataset(Dataset[Tensor]):
    """Images as torch-fidelity wants them: a data set of bytes (3, H, W), RGB.

    From bytes (N, 3, H, W), or from numbers in [−1, 1] (clamped), which become the nearest byte as in a PNG file. ``first`` is the
    number of the first one in the set that they belong to, for error texts alone. Raises Unsupported for another shape, no image, or
    values that are not finite.
    """

    def __init__(self, images: Tensor, first: int = 0) -> None:
        if images.dim() != 4 or images.shape[1] != 3 or not len(images):
            raise Unsupported(f"A distribution is one of images (N, 3, H, W), got a tensor of shape {tuple(images.shape)}.",
                              remedy="Give the decoded images, RGB, as bytes or in [−1, 1].")
        self.bytes = (images if images.dtype == torch.uint8 else _bytes(images, first)).cpu().contiguous()

    def __len__(self) -> int:
        return len(self.bytes)

    def __getitem__(self, index: int) -> Tensor:
        return self.bytes[index]

    @cached_property
    def digest(self) -> str:
        """A name for exactly these images in this order."""
        return digest([self.bytes])


def resized(images: Tensor, side: int) -> Tensor:
    """Images (B, 3, N, N) at another size, (B, 3, side, side); those of that size unchanged.

    Bicubic without antialiasing, of the decoder's numbers before they are clamped and become bytes, as in LlamaGen's evaluation (384 to
    256). That truncates 127.5·x + 128 where we round (x + 1)·127.5: these differ only half-way between two bytes. Raises Unsupported for
    bytes of another size, and for images that are not square.
    """
    height, width = images.shape[2:]
    if height == width == side:
        return images
    if height != width or images.dtype == torch.uint8:
        what = f"bytes of {height}×{width}" if height == width else f"{height}×{width} pixels"
        raise Unsupported(f"{side}×{side} pixels are to be seen; the images are {what}.",
                          remedy="Give square images, in numbers in [−1, 1] as the decoder returns them.")
    return F.interpolate(images.float(), size=(side, side), mode="bicubic", align_corners=False)


def digest(tensors: Iterable[Tensor], text: str = "") -> str:
    """A name for exactly these tensors and this text: 24 hex digits."""
    total = hashlib.sha256(text.encode())
    for tensor in tensors:
        total.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()[:24]


def nearest_bytes(images: Tensor) -> Tensor:
    """Numbers in [−1, 1], or clamped to them, to the nearest bytes, as in a PNG file."""
    return ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def _bytes(images: Tensor, first: int) -> Tensor:
    """The nearest bytes; raises Unsupported where one is not finite."""
    bad = (~torch.isfinite(images)).flatten(1).any(1).nonzero().flatten()
    if len(bad):
        raise Unsupported(f"{len(bad)} of {len(images)} images hold NaN or infinite values, the first is number {first + int(bad[0])}.",
                          remedy="Such images have no quality: mend the method that made them, or leave it out.")
    return nearest_bytes(images)
