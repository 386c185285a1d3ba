"""Bytes of keys and values that a method allocates, for given widths of K and V."""

from __future__ import annotations

import torch

from ..cache.layout import Layout, Site
from ..contract.method import Method


def entries(method: Method, layout: Layout) -> int:
    """Return the entries per row and head, all layers together."""
    method.resolve(layout)
    return sum(method.capacity(layout, Site("decoder", layer)) for layer in range(layout.layers))


def nbytes(layout: Layout, count: int, widths: tuple[int, int]) -> int:
    """Return the bytes of ``count`` entries in every row and head.

    ``widths``: bytes of one number of K and of V.
    """
    return layout.rows * layout.kv_heads * layout.head_dim * count * sum(widths)


def equal_widths(dtype: torch.dtype) -> tuple[int, int]:
    return dtype.itemsize, dtype.itemsize
