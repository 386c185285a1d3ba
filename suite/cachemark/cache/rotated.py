"""Codecs of rotated vectors: TurboQuant, and INT4 after the same rotation.

A fixed random rotation spreads every vector over all its coordinates. TurboQuant (Zandieh, Daliri, Hadian, Mirrokni, arXiv 2504.19874, the
variant for the squared error) then stores the length and, for each coordinate of the direction, the nearest centroid of a codebook that is
optimal for a random unit vector. Without the paper's 1-bit residual, as all public ports.

Unstated in the paper, and ours: the rotation is the same for all layers, heads, keys and values; the length has fp16; a read direction is
scaled to length 1, since a codeword is shorter than what it stands for and attention would get flatter; no channels are left out.

Attention is linear in keys and values, so the rotation can be folded into the projections before and after it. Its products are therefore
not counted as FLOPs, nor its table, 4·head_dim² bytes once per model, as memory.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.errors import BadParameter, Unsupported
from .codec import INT4, Codec, Parts

SEED = 2504
BITS = (2, 3, 4)
CONVERGED, LARGEST_LOOP = 1e-14, 20_000
_TINY = torch.finfo(torch.float64).tiny


class RotationConstants(NamedTuple):
    """Constants of a width on a device.

    ``rotation`` (width, width) fp64 maps a column vector, ``back`` is its transpose in fp32. ``centroids`` (levels,) fp32, and the
    ``bounds`` (levels − 1,) fp64 between them, of a unit vector's coordinates; empty without a codebook.
    """

    rotation: Tensor
    back: Tensor
    centroids: Tensor
    bounds: Tensor

    @classmethod
    def of(cls, rotation: Tensor, centroids: Tensor) -> RotationConstants:
        """Return the constants of a rotation and of ascending centroids, both fp64."""
        return cls(rotation, rotation.float(), centroids.float(), (centroids[1:] + centroids[:-1]) / 2)


_tables: dict[tuple[int, int, torch.device], RotationConstants] = {}


def table(width: int, bits: int, device: torch.device) -> RotationConstants:
    """Return the constants of a width, made once for each device; ``bits`` = 0 has no codebook."""
    key = width, bits, device
    if key not in _tables:
        with torch.inference_mode(False):
            centroids = torch.from_numpy(codebook(width, bits)) if bits else torch.zeros(0, dtype=torch.float64)
            made = RotationConstants.of(torch.from_numpy(rotation(width)), centroids)
            _tables[key] = RotationConstants(*(part.to(device) for part in made))
    return _tables[key]


def rotation(width: int) -> np.ndarray:
    """Return a random orthogonal matrix (width, width) in fp64, equal on every machine up to rounding.

    The law is uniform: QR of a Gaussian matrix, with the signs of R's diagonal.
    """
    q, r = np.linalg.qr(np.random.RandomState(SEED).standard_normal((width, width)))
    return q * np.sign(np.diag(r))


def codebook(width: int, bits: int) -> np.ndarray:
    """Return the 2^bits ascending fp64 centroids that are optimal for a random unit vector's coordinate.

    Lloyd's method: each centroid is the mean of its cell, and cells end halfway between two centroids. The density is proportional to
    (1 − t²)^((width − 3)/2), so a cell has a mass by the incomplete beta function and a mean in closed form. It is symmetric, so only the
    positive half is computed. Raises Unsupported for widths that have no such density.
    """
    from scipy.special import betainc  # here, because few processes need it

    if width < 3:
        raise Unsupported(f"TurboQuant has no codebook for vectors of {width} channels.", remedy="Use the codec int8.")
    half, exponent = 2**bits // 2, (width - 1) / 2
    scale = math.exp(math.lgamma(width / 2) - math.lgamma(exponent)) / math.sqrt(math.pi) / (width - 1)
    widest = min(1.0, 3 / math.sqrt(width))
    centroids = (np.arange(half) + 0.5) / half * widest
    for _ in range(LARGEST_LOOP):
        ends = 1 - np.concatenate(([0.0], (centroids[1:] + centroids[:-1]) / 2, [1.0])) ** 2
        beyond = betainc(exponent, 0.5, ends) / 2  # the mass above each end
        moments = scale * ends**exponent
        before, centroids = centroids, (moments[:-1] - moments[1:]) / (beyond[:-1] - beyond[1:])
        if np.abs(centroids - before).max() <= CONVERGED:
            break
    return np.concatenate((-centroids[::-1], centroids))


# -- encoding and decoding --------------------------------------------------------------------------------------------
def direction_codes(x: Tensor, constants: RotationConstants) -> tuple[Tensor, Tensor]:
    """Return codes (…, width) uint8 of the directions of ``x``, and lengths (…, 1) fp64.

    In fp64, so that no code depends on which vectors are encoded together.
    """
    exact = x.double()
    length = exact.norm(dim=-1, keepdim=True)
    rotated = (exact / length.clamp_min(_TINY)) @ constants.rotation.T
    return torch.bucketize(rotated, constants.bounds, right=True).to(torch.uint8), length


def vectors(codes: Tensor, length: Tensor, constants: RotationConstants) -> Tensor:
    """Return fp32 vectors (…, width) with the directions of codes and these lengths (…, 1)."""
    rotated = constants.centroids[codes.int()]
    return (rotated * (length.float() / rotated.norm(dim=-1, keepdim=True))) @ constants.back


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Pack codes of the last dimension into bytes, each code's lowest bit first."""
    count = 8 // math.gcd(8, bits)
    return _regrouped(codes, bits, count, 8, bits * count // 8)


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """Unpack the codes of :func:`pack_bits`."""
    count = 8 // math.gcd(8, bits)
    return _regrouped(packed, 8, bits * count // 8, bits, count)


def _regrouped(x: Tensor, bits: int, count: int, new_bits: int, new_count: int) -> Tensor:
    """Join each ``count`` numbers of ``bits`` bits to a word, and split it into ``new_count`` ones."""
    old, new = (each * torch.arange(n, dtype=torch.int32, device=x.device) for each, n in ((bits, count), (new_bits, new_count)))
    words = (x.unflatten(-1, (-1, count)).int() << old).sum(-1, dtype=torch.int32)
    return (words[..., None] >> new & (1 << new_bits) - 1).flatten(-2).to(torch.uint8)


def _encode(x: Tensor, bits: int) -> Parts:
    codes, length = direction_codes(x, table(x.size(-1), bits, x.device))
    return pack_bits(codes, bits), length.half()


def _decode(parts: Parts, dtype: torch.dtype, bits: int) -> Tensor:
    packed, length = parts
    return vectors(unpack_bits(packed, bits), length, table(packed.size(-1) * 8 // bits, bits, packed.device)).to(dtype)


def _widths(head_dim: int, dtype: torch.dtype, bits: int) -> tuple[tuple[int, torch.dtype], ...]:
    if head_dim < 3 or bits * head_dim % 8:
        raise Unsupported(f"turbo{bits} packs {bits} bits per channel into whole bytes, but heads have {head_dim} channels.",
                          remedy="Use the codec int8.")
    return (bits * head_dim // 8, torch.uint8), (1, torch.float16)


def turbo(bits: int) -> Codec:
    """Return TurboQuant with 2, 3 or 4 bits per channel; raise BadParameter for another number."""
    if bits not in BITS:
        raise BadParameter(f"TurboQuant has codes of 2, 3 or 4 bits (got {bits}).", remedy="Use turbo2, turbo3 or turbo4.")
    return Codec(f"turbo{bits}", partial(_widths, bits=bits), partial(_encode, bits=bits), partial(_decode, bits=bits),
                 constants=lambda width, device: tuple(table(width, bits, device)))


def _encode_rot4(x: Tensor) -> Parts:
    return INT4.encode((x.double() @ table(x.size(-1), 0, x.device).rotation.T).float())


def _decode_rot4(parts: Parts, dtype: torch.dtype) -> Tensor:
    rotated = INT4.decode(parts, torch.float32)
    return (rotated @ table(rotated.size(-1), 0, rotated.device).back).to(dtype)


TURBO = tuple(map(turbo, BITS))
ROT4 = Codec("rot4", INT4.widths, _encode_rot4, _decode_rot4, constants=lambda width, device: tuple(table(width, 0, device)))
