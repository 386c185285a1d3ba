"""Conversion of images to the input of a feature extractor: bytes, RGB, finite."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.errors import Unsupported


def as_bytes(images: Tensor, first: int = 0) -> Tensor:
    """Return RGB images (N, 3, H, W) as bytes on the host, from bytes or numbers in [−1, 1] (clamped).

    ``first`` is the index of the first image within its set, for error messages. Raises Unsupported for another shape, no image, or
    values that are not finite.
    """
    if images.dim() != 4 or images.shape[1] != 3 or not len(images):
        raise Unsupported(f"Quality needs images of shape (N, 3, H, W), got a tensor of shape {tuple(images.shape)}.",
                          remedy="Pass the decoded images, RGB, as bytes or in [−1, 1].")
    if images.dtype == torch.uint8:
        return images.cpu().contiguous()
    bad = (~torch.isfinite(images)).flatten(1).any(1).nonzero().flatten()
    if len(bad):
        raise Unsupported(f"{len(bad)} of {len(images)} images contain NaN or infinity; the first has index {first + int(bad[0])}.",
                          remedy="Fix the method that generated them, or leave it out.")
    return nearest_bytes(images).cpu().contiguous()


def resized(images: Tensor, side: int) -> Tensor:
    """Return images (B, 3, N, N) resized to (B, 3, side, side), or unchanged if they have that size.

    Bicubic without antialiasing, of the decoder's numbers before they are clamped and become bytes, as in LlamaGen's evaluation (384 to
    256). LlamaGen truncates 127.5·x + 128 where we round (x + 1)·127.5, which differs only halfway between two bytes. Raises Unsupported
    for bytes of another size, and for images that are not square.
    """
    height, width = images.shape[2:]
    if height == width == side:
        return images
    if height != width or images.dtype == torch.uint8:
        what = f"bytes of {height}×{width}" if height == width else f"{height}×{width} pixels"
        raise Unsupported(f"{side}×{side} pixels are needed; the images are {what}.",
                          remedy="Pass square images as numbers in [−1, 1].")
    return F.interpolate(images.float(), size=(side, side), mode="bicubic", align_corners=False)


def nearest_bytes(images: Tensor) -> Tensor:
    """Return numbers in [−1, 1] (clamped) as the nearest bytes, as in a PNG file."""
    return ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
