"""Storage formats of cached vectors: as they are, or as 8-bit integers with a scale.

The codec belongs to the storage, not to a method: every method runs with every codec, and bytes count codes and scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import unknown

Parts = tuple[Tensor, ...]


@dataclass(frozen=True)
class Codec:
    """``widths(head_dim, dtype)`` gives (elements, dtype) of each part of an entry; ``encode``/``decode`` map vectors
    (…, head_dim) to parts and back."""

    name: str
    widths: Callable[[int, torch.dtype], tuple[tuple[int, torch.dtype], ...]]
    encode: Callable[[Tensor], Parts]
    decode: Callable[[Parts, torch.dtype], Tensor]

    @property
    def exact(self) -> bool:
        """True where what is read is what was written, so that attention may read the storage in place."""
        return self.name == "native"

    def entry_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes of one stored vector."""
        return sum(width * part.itemsize for width, part in self.widths(head_dim, dtype))


def _encode_int8(x: Tensor) -> Parts:
    """Symmetric, one fp32 scale per vector: the largest magnitude maps to 127. A zero vector has scale 0 and stays zero."""
    scale = x.abs().amax(-1, keepdim=True).float() / 127
    codes = torch.round(x.float() / scale.clamp_min(torch.finfo(torch.float32).tiny)).to(torch.int8)
    return codes, scale


def _decode_int8(parts: Parts, dtype: torch.dtype) -> Tensor:
    codes, scale = parts
    return (codes.float() * scale).to(dtype)


NATIVE = Codec("native", lambda d, dtype: ((d, dtype),), lambda x: (x,), lambda parts, dtype: parts[0])
INT8 = Codec("int8", lambda d, dtype: ((d, torch.int8), (1, torch.float32)), _encode_int8, _decode_int8)
CODECS = {codec.name: codec for codec in (NATIVE, INT8)}


def codec(name: str) -> Codec:
    """The codec of that name, or an error with the nearest one."""
    if name not in CODECS:
        raise unknown("codec", name, CODECS)
    return CODECS[name]
