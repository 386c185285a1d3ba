"""Noise of this machine: the scatter of a fixed workload, and the smallest visible change."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

import torch

from .timer import clock

REPEATS, WARMUP = 20, 3
PAIRS = 8  # of processes, which a gate buys for an unchanged cell on average
POWER = 2.8  # standard errors that a change must have to be found at 5 % in four of five cases
STEPS, SIDE = 24, {"cpu": 384, "cuda": 4096}


class Noise(NamedTuple):
    """Scatter of a workload's times.

    ``score``: robust standard deviation as a fraction of the median; ``worst``: the slowest over the median, minus 1; ``sees``: the
    smallest change that :data:`PAIRS` pairs with this scatter would detect."""

    score: float
    worst: float
    sees: float
    seconds: tuple[float, ...]


def noise(device: str = "cpu", repeats: int = REPEATS) -> Noise:
    """Time the canary: matrix products with a nonlinearity, like a step of a small model."""
    a = torch.randn(SIDE[device], SIDE[device], generator=torch.Generator().manual_seed(0)).to(device) / SIDE[device] ** 0.5
    watch, times = clock(device, ()), []
    for _ in range(WARMUP + repeats):
        x = a
        watch.start()
        for _ in range(STEPS):
            x = torch.nn.functional.silu(x @ a)
        times.append(watch.stop())
    return noise_of(times[WARMUP:])


def noise_of(seconds: list[float]) -> Noise:
    """Return the noise of these times; the scatter is the scaled median absolute deviation."""
    middle = statistics.median(seconds)
    score = 1.4826 * statistics.median(abs(s - middle) for s in seconds) / middle
    return Noise(score, max(seconds) / middle - 1, POWER * math.sqrt(2 / PAIRS) * score, tuple(seconds))
