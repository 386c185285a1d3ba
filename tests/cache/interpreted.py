"""Compares the Triton kernel with the written-out formula on a CPU, in Triton's interpreter."""

from __future__ import annotations

import torch

from cachemark.cache.kernels.mass_triton import attention_with_mass
from cachemark.cache.kernels.plain import written_out
from cachemark.cache.kernels.record import fold

# queries, heads that share a key, keys, width of a head: below, at and beyond the blocks of the kernel
SHAPES = ((1, 1, 1, 16), (1, 1, 64, 64), (1, 1, 65, 48), (1, 4, 130, 16), (9, 2, 17, 20), (40, 1, 70, 64))


def check(tokens: int, groups: int, keys: int, width: int) -> None:
    """Keys and values lie in a longer buffer whose end must not be read."""
    draw = torch.Generator().manual_seed(keys)
    q = torch.randn(2, 2 * groups, tokens, width, generator=draw)
    buffers = torch.randn(2, 2, 2, 160, width, generator=draw)
    buffers[..., keys:, :] = float("nan")
    k, v = buffers[:, :, :, :keys]
    out, mass = attention_with_mass(fold(q, 2), k, v)
    expected, weights = written_out(q, k, v, causal=False)
    torch.testing.assert_close(out.reshape(q.shape), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(mass, weights, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    for shape in SHAPES:
        check(*shape)
        print(*shape)
