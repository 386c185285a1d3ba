"""What a device does at its best, measured: bytes per second of a copy, FLOPs per second of a matrix product."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from ..errors import Infrastructure

COPY_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}  # far more than the caches hold
SIDE = {"cpu": 1024, "cuda": 8192}  # of the square matrices
REPEATS = 5


class Rates(NamedTuple):
    """Bytes per second that a copy reads and writes, and FLOPs per second of a matrix product."""

    copy: float
    matmul: float


CARDS = {"h100": (3.35e12, 989e12, 67e12), "h200": (4.8e12, 989e12, 67e12), "a100": (2.04e12, 312e12, 19.5e12)}
"""Of SXM cards, from their data sheets: bytes per second, FLOPs per second in 16 bits and in fp32 without TF32."""


def nominal(card: str, dtype: torch.dtype) -> Rates:
    """Rates of a card that is not here, for prices."""
    copy, half, single = CARDS[card]
    return Rates(copy, single if dtype.itemsize == 4 else half)


def rates(device: str, dtype: torch.dtype = torch.float32) -> Rates:
    """The best of a few repeats, after a warm-up."""
    source = torch.ones(COPY_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    a = torch.randn(SIDE[device], SIDE[device], device=device).to(dtype)
    b, out = a.t().contiguous(), torch.empty_like(a)
    copied = _best(lambda: target.copy_(source), device)
    multiplied = _best(lambda: torch.mm(a, b, out=out), device)
    return Rates(2 * COPY_BYTES[device] / copied, 2 * SIDE[device] ** 3 / multiplied)


def rates_apart(device: str, dtype: torch.dtype) -> Rates:
    """The same, measured by a process of its own: this one must not be found on a GPU where trials run."""
    command = [sys.executable, "-P", "-m", "cachemark.measure.rates", device, str(dtype).removeprefix("torch.")]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode:
        raise Infrastructure(f"The rates of {device} cannot be measured: {told.stderr.strip()[-300:]}.", remedy="See `cachemark doctor`.")
    return Rates(*json.loads(told.stdout))


def _best(work: Callable[[], object], device: str) -> float:
    """Seconds of the fastest repeat."""
    found = []
    for _ in range(REPEATS + 1):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        found.append(time.perf_counter() - began)
    return min(found[1:])


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    print(json.dumps(rates(sys.argv[1], getattr(torch, sys.argv[2]))))
