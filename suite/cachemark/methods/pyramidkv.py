"""PyramidKV: SnapKV with more entries in early layers than in late ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..cache.layout import Layout
from .registry import method
from .snapkv import LineBudgets


@method("pyramidkv")
@dataclass
class PyramidKV(LineBudgets):
    """Gives layers budgets that fall linearly with depth, ``mean`` on average; selects like SnapKV.

    Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling" (2024), §4.1: the last layer has
    ``mean`` / ``beta``, the first one so many that the mean is right. Adapted: budgets are whole lines, at least one above the ``alpha``
    latest entries.
    """

    title = "PyramidKV"
    source = "Cai et al. 2024 (PyramidKV), §4.1"
    authors_code = "yes: Zefan-Cai/KVCache-Factory"

    beta: float = 20.0

    def shares(self, layout: Layout, mean: int, least: int) -> Sequence[Sequence[int]]:
        self.check_range("beta", self.beta >= 1, "Use 1 (equal layers) or more.")
        return [[lines] * layout.kv_heads for lines in pyramid(mean, layout.layers, self.beta, least, layout.lines)]


def pyramid(mean: int, layers: int, beta: float, least: int, most: int) -> list[int]:
    """Return whole lines per layer, falling linearly, whose sum is ``mean`` · ``layers``.

    Each layer has ``least`` to ``most`` lines.
    """
    last = max(float(least), mean / beta, 2.0 * mean - most)
    first, lines, total = 2 * mean - last, list[int](), 0.0
    for layer in range(layers):
        total += first + (last - first) * (layer / (layers - 1) if layers > 1 else 0.5)
        lines.append(int(total + 0.5) - sum(lines))
    return sorted(lines, reverse=True)
