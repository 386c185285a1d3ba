"""Bytes of keys and values on paper: what a method has to allocate for a layout, under a stated width of K and V."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import resources

import torch

from ..cache.layout import Layout, Site
from ..contract.method import Method

PAPER_UNIT = 1000 * 2**20  # what AMS-KV prints as GB
MIXED = (4, 2)  # bytes of K and V in VAR's published code under fp16 autocast: its K is normalised, hence cached, in fp32


def entries(method: Method, layout: Layout) -> int:
    """Entries that one row and head needs, all layers together."""
    method.resolve(layout)
    return sum(method.capacity(layout, Site("decoder", layer)) for layer in range(layout.layers))


def nbytes(layout: Layout, count: int, widths: tuple[int, int]) -> int:
    """Bytes of ``count`` entries in every row and head; ``widths``: bytes of a number of K and of V."""
    return layout.rows * layout.kv_heads * layout.head_dim * count * sum(widths)


def equal_widths(dtype: torch.dtype) -> tuple[int, int]:
    """K and V in one dtype."""
    return dtype.itemsize, dtype.itemsize


@dataclass(frozen=True)
class PrintedBytes:
    """A published size of a KV cache, as its paper prints it. ``batch`` 0: none is printed."""

    table: str
    model: str
    batch: int
    method: str
    printed: str

    def agrees(self, size: int) -> bool:
        """True where ``size`` in bytes gives the printed digits, rounded or cut off."""
        digits = len(self.printed.partition(".")[2])
        scaled = size / PAPER_UNIT * 10**digits
        return self.printed in {f"{round(scaled) / 10**digits:.{digits}f}", f"{math.floor(scaled) / 10**digits:.{digits}f}"}

    def entries(self, layout: Layout, widths: tuple[int, int]) -> float:
        """Entries, all layers together, that the printed size would be."""
        return float(self.printed) * PAPER_UNIT / nbytes(layout, 1, widths)


def published(model: str) -> list[PrintedBytes]:
    """The sizes that AMS-KV prints for a model."""
    text = (resources.files("cachemark") / "data" / "published" / "ams-kv.json").read_text(encoding="utf-8")
    return [found for row in json.loads(text)["kv_cache"] if (found := PrintedBytes(**row)).model == model]
