"""Ada-KV: SnapKV with more entries in heads whose attention is spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..cache.layout import Layout
from .base.calibrations import Calibrated
from .registry import method
from .snapkv import LineBudgets

RESOLVED = 5  # decimals of a gain: curves are stored with six


@method("adakv")
@dataclass
class AdaKV(Calibrated, LineBudgets):
    """Divides a layer's budget among its heads by attention; selects entries like SnapKV.

    Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM Inference" (2024), §3: entries go to
    the heads with the largest attention weights; each head gets at least the fraction ``floor`` of the mean. Adapted: weights are measured
    once for the model (:attr:`parts`), as means over the 8 latest queries of each line, since storage cannot depend on an image; budgets
    are whole lines, at least one in addition to the ``alpha`` latest entries.
    """

    title = "Ada-KV"
    source = "Feng et al. 2024 (Ada-KV), §3"
    authors_code = "yes: FFY0/AdaKV"
    unstated = {"calibration": "ours: the paper measures each prompt; here ten tuning seeds, conditional rows alone"}
    paradigms = ("next-token",)
    parts = ("concentration",)

    floor: float = 0.2

    def shares(self, layout: Layout, mean: int, least: int) -> Sequence[Sequence[int]]:
        self.check_range("floor", 0 <= self.floor <= 1, "Use a number from 0 to 1.")
        least = max(least, round(self.floor * mean))
        return [shared(curves, mean, least) for curves in self.facts(layout)["concentration"]]


def shared(curves: Sequence[Sequence[float]], mean: int, least: int) -> list[int]:
    """Return the lines of each head, whose sum is ``mean`` per head; ``least`` to all each.

    ``curves[head][n]``: the attention that the strongest n + 1 lines of entries hold. Each line goes to the head that gains most by it;
    of heads whose gains differ by less than the curves resolve, to the one with the fewest lines.
    """
    lines = [least] * len(curves)
    for _ in range(mean * len(curves) - sum(lines)):
        gains = [round(curve[n] - curve[n - 1], RESOLVED) if n < len(curve) else -1.0 for curve, n in zip(curves, lines, strict=True)]
        lines[max(range(len(lines)), key=lambda head: (gains[head], -lines[head]))] += 1
    return lines
