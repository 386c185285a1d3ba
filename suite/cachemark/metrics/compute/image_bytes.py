"""Images on their way to a feature extractor: bytes, RGB, finite."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.errors import Unsupported


def as_bytes(images: Tensor, first: int = 0) -> Tensor:
    """Images (N, 3, H, W), RGB, as bytes on the host: bytes as they are, numbers in [−1, 1] (clamped) as the nearest byte.

    ``first`` is the number of the first one in the set that they belong to, for error texts alone. Raises Unsupported for another shape,
    no image, or values that are not finite.
    """
    if images.dim() != 4 or images.shape[1] != 3 or not len(images):
        raise Unsupported(f"A distribution is one of images (N, 3, H, W), got a tensor of shape {tuple(images.shape)}.",
                          remedy="Give the decoded images, RGB, as bytes or in [−1, 1].")
    if images.dtype == torch.uint8:
        return images.cpu().contiguous()
    bad = (~torch.isfinite(images)).flatten(1).any(1).nonzero().flatten()
    if len(bad):
        raise Unsupported(f"{len(bad)} of {len(images)} images hold NaN or infinite values, the first is number {first + int(bad[0])}.",
                          remedy="Such images have no quality: fix the method that made them, or leave it out.")
    return nearest_bytes(images).cpu().contiguous()


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


def nearest_bytes(images: Tensor) -> Tensor:
    """Numbers in [−1, 1], or clamped to them, to the nearest bytes, as in a PNG file."""
    return ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
