"""KV quantization: entries stored as they are, or as codes of 8 or 4 bits with scales.

The codec belongs to the storage, not to a method: every method runs with every codec, and byte counts include scales. All but ``kivi4``
encode each vector by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import Unsupported

Parts = tuple[Tensor, ...]
Widths = Callable[[int, torch.dtype], tuple[tuple[int, torch.dtype], ...]]


GROUP = 32  # channels of a value, or tokens of a key's channel, that share a range, as in KIVI
_LEVELS = 15


@dataclass(frozen=True)
class Codec:
    """A storage format of vectors.

    ``widths(head_dim, dtype)`` gives (elements, dtype) of each part of an entry; ``encode`` and ``decode`` map vectors (…, head_dim) to
    parts and back. ``grouped``: keys share ranges among tokens (:mod:`~.grouped_keys`); the other fields then describe values.
    ``constants(head_dim, device)`` returns the tensors that ``encode`` and ``decode`` read, made once; they belong to no generation.
    """

    name: str
    widths: Widths
    encode: Callable[[Tensor], Parts]
    decode: Callable[[Parts, torch.dtype], Tensor]
    grouped: bool = False
    constants: Callable[[int, torch.device], Parts] = lambda head_dim, device: ()

    @property
    def exact(self) -> bool:
        """True if reading returns the written values, so that attention can read the storage in place."""
        return self.name == "native"

    def entry_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """Return the bytes of one stored vector."""
        return _bytes(self.widths(head_dim, dtype))

    def key_widths(self, head_dim: int, dtype: torch.dtype) -> tuple[tuple[int, torch.dtype], ...]:
        """Return elements and dtype of each part of a key."""
        return ((head_dim // 2, torch.uint8), (1, torch.int16)) if self.grouped else self.widths(head_dim, dtype)

    def pair_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """Return the bytes of one entry, a key and its value."""
        return _bytes(self.key_widths(head_dim, dtype)) + self.entry_bytes(head_dim, dtype)

    def shared_bytes(self, head_dim: int, dtype: torch.dtype, tokens: int) -> int:
        """Return the bytes that the keys of one row and head share, for ``tokens`` arrivals in all.

        They are the ranges of every group, and the newest group unquantized.
        """
        if not self.grouped:
            return 0
        return math.ceil(tokens / GROUP) * head_dim * 2 * torch.float16.itemsize + GROUP * head_dim * dtype.itemsize


def _bytes(widths: tuple[tuple[int, torch.dtype], ...]) -> int:
    return sum(width * part.itemsize for width, part in widths)


def _encode_int8(x: Tensor) -> Parts:
    """Encode symmetrically, with one fp32 scale per vector; a zero vector has scale 0."""
    scale = x.abs().amax(-1, keepdim=True).float() / 127
    codes = torch.round(x.float() / scale.clamp_min(torch.finfo(torch.float32).tiny)).to(torch.int8)
    return codes, scale


def _decode_int8(parts: Parts, dtype: torch.dtype) -> Tensor:
    codes, scale = parts
    return (codes.float() * scale).to(dtype)


FP8 = torch.float8_e4m3fn
_FP8_LARGEST = torch.finfo(FP8).max


def _encode_fp8(x: Tensor) -> Parts:
    """Encode as e4m3 bytes with one fp16 scale per vector; the largest magnitude maps to 448."""
    scale = (x.abs().amax(-1, keepdim=True).float() / _FP8_LARGEST).clamp_min(torch.finfo(torch.float16).tiny).half()
    return (x.float() / scale.float()).clamp(-_FP8_LARGEST, _FP8_LARGEST).to(FP8).view(torch.uint8), scale


def _decode_fp8(parts: Parts, dtype: torch.dtype) -> Tensor:
    codes, scale = parts
    return (codes.contiguous().view(FP8).float() * scale).to(dtype)


def _groups(head_dim: int) -> int:
    """Return the number of groups: their width is the even divisor nearest to 32 channels by ratio, so that no byte lies in two."""
    width = min((d for d in range(2, head_dim + 1, 2) if head_dim % d == 0), key=lambda d: (max(d, GROUP) / min(d, GROUP), d))
    return head_dim // width


def levels(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize ``x`` to 0 … 15 in its range along ``dim``; return codes, step and minimum (fp16).

    The smallest step is 2⁻²⁴, the smallest fp16 number.
    """
    x = x.float()
    least = x.amin(dim, keepdim=True).half()
    step = ((x.amax(dim, keepdim=True) - least.float()) / _LEVELS).half()
    codes = (x - least.float()) / step.float().clamp_min(2.0**-24)
    return codes.round().clamp(0, _LEVELS).to(torch.uint8), step, least


def pack(codes: Tensor) -> Tensor:
    """Pack pairs of codes of the last dimension into bytes."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def unpack(packed: Tensor) -> Tensor:
    """Unpack the codes of :func:`pack`."""
    return torch.stack((packed & _LEVELS, packed >> 4), -1).flatten(-2)


def _encode_int4(x: Tensor) -> Parts:
    """Quantize each group of 32 channels to 16 levels from its minimum on.

    Groups have another size if 32 does not divide the width: 50 channels of 100. As in KIVI (Liu et al. 2024, values), with scales in
    fp16.
    """
    codes, step, least = levels(x.unflatten(-1, (_groups(x.size(-1)), -1)), -1)
    return pack(codes.flatten(-2)), step.squeeze(-1), least.squeeze(-1)


def _decode_int4(parts: Parts, dtype: torch.dtype) -> Tensor:
    packed, step, least = parts
    grouped = unpack(packed).unflatten(-1, (step.size(-1), -1)).float()
    return (grouped * step[..., None] + least[..., None]).flatten(-2).to(dtype)


def _int4_widths(head_dim: int, dtype: torch.dtype) -> tuple[tuple[int, torch.dtype], ...]:
    if head_dim % 2:
        raise Unsupported(f"int4 packs two codes per byte, but heads have {head_dim} channels.", remedy="Use the codec int8.")
    return (head_dim // 2, torch.uint8), (_groups(head_dim), torch.float16), (_groups(head_dim), torch.float16)


NATIVE = Codec("native", lambda d, dtype: ((d, dtype),), lambda x: (x,), lambda parts, dtype: parts[0])
INT8 = Codec("int8", lambda d, dtype: ((d, torch.int8), (1, torch.float32)), _encode_int8, _decode_int8)
E4M3 = Codec("fp8", lambda d, dtype: ((d, torch.uint8), (1, torch.float16)), _encode_fp8, _decode_fp8)
INT4 = Codec("int4", _int4_widths, _encode_int4, _decode_int4)
KIVI4 = Codec("kivi4", _int4_widths, _encode_int4, _decode_int4, grouped=True)
CODECS = {codec.name: codec for codec in (NATIVE, INT8, E4M3, INT4, KIVI4)}  # with those of :mod:`codecs`, all by name
