"""Compares products with their activation with fp64 on a CPU, in Triton's interpreter; run by test_fused_norms.py."""

import sys

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreting import CLOSE, near, run

from cachemark.cache.kernels.fused_products import ACTIVATIONS, ODD, compare, product, tile

TILES = {(2048, 2048): (128, 256, 8), (2048, 1024): (128, 128, 8), (600, 1040): (64, 64, 4), (600, 70): (64, 32, 4), (5, 70): (16, 32, 4)}


def products(rows: int, outs: int, insides: int, dtype: torch.dtype, activation: str) -> None:
    """The library rounds between product and activation, and so does the kernel; fp64 does not."""
    draw = torch.Generator().manual_seed(rows)
    x, weight, bias = (torch.randn(size, generator=draw) for size in ((rows, 1, insides), (outs, insides), (outs,)))
    x, weight, bias = (part.to(dtype) for part in (x, weight / insides**0.5, bias))
    linear = F.linear(x.double(), weight.double(), bias.double())
    near(product(x, weight, bias, activation), ACTIVATIONS[activation](linear))


def fixed() -> None:
    for dtype, activation in zip(CLOSE, ACTIVATIONS, strict=True):
        products(70, 45, 100, dtype, activation)
        products(600, 70, 16, dtype, activation)  # more blocks of rows than share the weights


SETTINGS = settings(max_examples=5, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
anything = SETTINGS(given(*[st.integers(1, 150)] * 3, st.sampled_from([*CLOSE]), st.sampled_from([*ACTIVATIONS]))(products))


def tiles() -> None:
    for (rows, outs), expected in TILES.items():
        assert tile(rows, outs) == expected
    for dtype in CLOSE:
        assert compare(torch.device("cpu"), dtype, [ODD]) == ""


if __name__ == "__main__":
    run(sys.argv[1:], {"fused_products_triton": fixed}, tiles, anything=(anything,))
