"""Peak bytes against patterns of allocation whose peak is known by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from cachemark.machine.memory import TensorPeak

KIB = 1024


def block(kib: int) -> Tensor:
    return torch.empty(kib * KIB, dtype=torch.uint8)


def test_the_peak_is_the_largest_sum_alive_at_once() -> None:
    with TensorPeak() as watch:
        a, b = block(100), block(50)
        del a
        c = block(70)  # 50 + 70 stand beside each other, less than 150
    assert watch.peak == 150 * KIB
    with watch:
        d = block(31)  # 50 + 70 + 31
    assert watch.peak == 151 * KIB
    del b, c, d
    with TensorPeak() as watch, torch.inference_mode():
        for _ in range(20):
            held = block(3) + block(3)  # freed ones do not count
            del held
    assert watch.peak == 9 * KIB
    x = torch.arange(512.0)
    with TensorPeak() as watch:
        values, indices = x.sort()
    assert watch.peak == values.nbytes + indices.nbytes == 512 * (4 + 8)


def test_views_cost_nothing() -> None:
    with TensorPeak() as watch:
        a = block(64)
        views = [a[:KIB], a.view(8, -1), a.view(8, -1).T, a.expand(4, -1), a.detach()]
        a.add_(1)
        views[0].zero_()
    assert watch.peak == 64 * KIB


def test_a_view_keeps_the_whole_storage_alive() -> None:
    with TensorPeak() as watch:
        a = block(64)
        part = a[:1]
        del a
        b = block(10)
    assert watch.peak == 74 * KIB
    del part, b


def test_the_mode_ends_with_its_block() -> None:
    with TensorPeak() as watch:
        block(1)
    before = watch.peak
    kept = block(1000)
    assert watch.peak == before == KIB
    del kept
