"""Budgets of PyramidKV's layers and Ada-KV's heads."""

from __future__ import annotations

import itertools
import random

import pytest

from cachemark.methods.adakv import shared
from cachemark.methods.pyramidkv import pyramid


@pytest.mark.parametrize("layers", [1, 2, 6, 36])
def test_a_pyramid_has_the_requested_sum_and_falls(layers: int) -> None:
    for mean in (2, 3, 8, 15, 16):
        lines = pyramid(mean, layers, beta=20.0, least=2, most=16)
        assert sum(lines) == mean * layers
        assert lines == sorted(lines, reverse=True)
        assert all(2 <= count <= 16 for count in lines)


def test_a_pyramid_falls_linearly() -> None:
    assert pyramid(5, 4, beta=5.0, least=1, most=16) == [9, 6, 4, 1]
    assert pyramid(5, 4, beta=1.0, least=1, most=16) == [5, 5, 5, 5]


def test_heads_share_lines_so_that_most_attention_stays() -> None:
    draw = random.Random(0)
    for _ in range(20):
        weights = [sorted((draw.random() ** 3 for _ in range(6)), reverse=True) for _ in range(3)]
        curves = [[sum(head[: n + 1]) / sum(head) for n in range(6)] for head in weights]
        lines = shared(curves, mean=3, least=1)
        best = max(sum(curve[n - 1] for curve, n in zip(curves, split, strict=True))
                    for split in itertools.product(range(1, 7), repeat=3) if sum(split) == 9)
        assert sum(lines) == 9
        assert sum(curve[n - 1] for curve, n in zip(curves, lines, strict=True)) == pytest.approx(best)


def test_every_head_gets_the_least() -> None:
    assert shared([[1.0, 1.0, 1.0, 1.0], [0.1, 0.4, 0.7, 1.0]], mean=2, least=1) == [1, 3]


def test_lines_that_gain_nothing_are_spread_evenly() -> None:
    """Attention of heads that look at few entries is all within the first line; the other lines are not one head's."""
    assert shared([[1.0] * 16] * 4, mean=8, least=2) == [8, 8, 8, 8]
    assert shared([[0.999999] + [1.0] * 15, [1.0] * 16, [0.5] + [1.0] * 15], mean=4, least=1) == [4, 4, 4]
    assert shared([[0.999, 0.9995, *[1.0] * 14], [1.0] * 16], mean=2, least=1) == [3, 1]
