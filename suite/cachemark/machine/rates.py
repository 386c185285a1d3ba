"""Measured bandwidth and FLOP/s of this device, for roofline times.

The best of several attempts, because a roofline time is a bound. Buffers are much larger than CPU caches; a small model may still fit into
a cache and be faster than its roofline time, which the report states.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from time import perf_counter

import torch

from ..core.errors import Infrastructure
from ..core.limits import Rates
from .affinity import torch_threads
from .environment import no_cuda
from .timer import clock

COPIED = {"cpu": 128 * 2**20, "cuda": 2**30}  # bytes of the buffer that is read
SIDES = {"cpu": (512, 1024), "cuda": (4096, 8192)}  # sizes of the square matrices; the faster one counts
PATIENCE = 0.4  # seconds after which no further attempt is made
ATTEMPTS = (3, 20)  # at least, at most


def rates(device: str, threads: int, dtypes: Iterable[str], uuid: str = "") -> dict[str, Rates]:
    """Return rates by dtype (``float32``, …), measured once per process, device and number of threads.

    A CUDA device (``uuid``, or the first) is measured in another process, so that this one uses no memory there; empty if that fails, for
    lack of memory for example."""
    names = tuple(sorted(set(dtypes)))
    return dict(_cpu(threads, names) if device == "cpu" else _elsewhere(device, names, uuid))


def rate(device: str, threads: int, dtype: str) -> Rates:
    """Return the rates of one dtype. Raises Infrastructure if they cannot be measured."""
    if device == "cuda" and not torch.cuda.is_available():
        raise no_cuda("Name a card instead, such as --card h100, or use --device cpu.")
    if (measured := rates(device, threads, [dtype]).get(dtype)) is None:
        raise Infrastructure(f"The rates of {device} cannot be measured: its process failed, for lack of free memory perhaps.",
                             remedy="See `cachemark doctor`.")
    return measured


@cache
def _cpu(threads: int, dtypes: tuple[str, ...]) -> tuple[tuple[str, Rates], ...]:
    with torch_threads(threads):
        bandwidth = measured_bandwidth("cpu")
        return tuple((name, Rates(bandwidth, measured_flops("cpu", getattr(torch, name)))) for name in dtypes)


@cache
def _elsewhere(device: str, dtypes: tuple[str, ...], uuid: str) -> tuple[tuple[str, Rates], ...]:
    command = [sys.executable, "-P", "-m", "cachemark.machine.rates", device, *dtypes]
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": uuid} if uuid else {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    results = json.loads(done.stdout) if done.returncode == 0 else {}
    return tuple((name, Rates(bandwidth, flops)) for name, (bandwidth, flops) in results.items())


def measured_bandwidth(device: str) -> float:
    """Return bytes per second: the faster of a copy, reads plus writes, and a read.

    A CPU also reads the memory that a copy overwrites, which the count ignores; a roofline time must not be too long."""
    source = torch.ones(COPIED[device] // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return max(2 * source.nbytes / fastest(device, lambda: target.copy_(source)), source.nbytes / fastest(device, source.sum))


def measured_flops(device: str, dtype: torch.dtype) -> float:
    """Return FLOP/s of a square matrix product."""
    def product(side: int) -> float:
        a, b = (torch.ones(side, side, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        return 2 * side**3 / fastest(device, lambda: torch.mm(a, b, out=out))

    return max(product(side) for side in SIDES[device])


def fastest(device: str, work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of several attempts after a warm-up."""
    watch, began = clock(device, ()), perf_counter()
    times: list[float] = []
    with torch.inference_mode():
        work()
        while len(times) < ATTEMPTS[0] or (len(times) < ATTEMPTS[1] and perf_counter() - began < PATIENCE):
            watch.start()
            work()
            times.append(watch.stop())
    return min(times)


def main() -> None:
    """Print the rates of a device and dtypes as JSON."""
    device, *names = sys.argv[1:]
    bandwidth = measured_bandwidth(device)
    print(json.dumps({name: [bandwidth, measured_flops(device, getattr(torch, name))] for name in names}))


if __name__ == "__main__":
    main()
