"""Random numbers keyed by sample, independent of batch and device.

Integers come from a counter: each is a hash of (seed, purpose, branch, position, inner step, counter) in wrapping int64 operations, so they
are equal on every device and for any batch size or order. The hash is the output function of SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014, Fig. 17), applied once per key word. Purposes never share a stream. The key has a
position, not a step, so that runs with different step counts stay paired.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

PURPOSES = {"token": 1, "evict": 2, "order": 3, "noise": 4, "time": 5, "draft": 6, "coin": 7, "residual": 8}
_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift right logically: arithmetic shift of int64 with the copied sign bits cleared."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = _shifted(x, 30).bitwise_xor_(x).mul_(_FIRST)
    x = _shifted(x, 27).bitwise_xor_(x).mul_(_SECOND)
    return _shifted(x, 31).bitwise_xor_(x)


def keys(seeds: Tensor, purpose: str, position: int | Tensor, *, branch: int | Tensor = 0, inner: int = 0) -> Tensor:
    """Return one 64-bit key per sample.

    ``seeds``: int64, any shape; ``position`` and ``branch`` broadcast against it.
    """
    key = _mix(seeds + _GOLDEN)
    for word in (PURPOSES[purpose], branch, position, inner):
        key = _mix((key ^ word) + _GOLDEN)
    return key


def integers(key: Tensor, count: int) -> Tensor:
    """Return ``count`` integers in [0, 2³²) for each key: (…, count) int64."""
    counter = torch.arange(1, count + 1, device=key.device) * _GOLDEN
    return _shifted(_mix(key[..., None] + counter), 32)


def below(key: Tensor, count: int, bound: int) -> Tensor:
    """Return ``count`` integers in [0, bound) for each key; the bias is below bound/2³²."""
    return (integers(key, count) * bound) >> 32


def uniform(key: Tensor, count: int) -> Tensor:
    """Return ``count`` fp32 numbers inside (0, 1) for each key: odd multiples of 2⁻²⁴, exact in fp32."""
    return (integers(key, count) >> 9).float().add_(0.5).mul_(2.0**-23)


def gumbel(key: Tensor, count: int) -> Tensor:
    """Return ``count`` standard Gumbel numbers for each key, fp32."""
    return uniform(key, count).log_().neg_().log_().neg_()


def seeds_tensor(seeds: Sequence[int], device: torch.device | str) -> Tensor:
    """Return seeds as an int64 tensor on a device."""
    return torch.tensor(list(seeds), dtype=torch.int64, device=device)
