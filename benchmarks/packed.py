"""What packed weights are worth: a linear layer over few rows, plain and packed, as gigabytes of weights read per second.

Weights are taken in turn from a set that no cache holds, as in a model. Each value is the best of five tries. Beside the table stands the
machine's bandwidth, reading and writing counted, as everywhere.

    python benchmarks/packed.py [--threads 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from cachemark.models.layers import Packed, Projection
from origin import Origin

SHAPES = ((192, 768), (384, 384), (768, 768), (768, 3072), (1024, 3072))
ROWS = (1, 4, 8, 64, 640)
COLD = 120_000_000  # bytes of weights that are gone through before one comes again
TRIES = 5


def seconds(call: Callable[[], object], calls: int) -> float:
    """Of one call, the best of several tries."""
    best = float("inf")
    for _ in range(TRIES):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def measured_bandwidth() -> float:
    """Bytes read and written per second by a large copy."""
    source = torch.ones(COLD // 2)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), 3)


@torch.inference_mode()
def measured() -> Iterator[dict[str, float]]:
    """A row for every shape and number of rows: bytes of weights per second, plain and packed."""
    for inside, width in SHAPES:
        plain = [Projection(inside, width) for _ in range(max(4, COLD // (4 * inside * width)))]
        kinds: dict[str, list[nn.Module]] = {"plain": list(plain), "packed": [Packed(layer) for layer in plain]}
        for rows in ROWS:
            x, calls = torch.randn(rows, inside), 48 if rows < 640 else 4
            spent = {kind: seconds(_turning(layers, x), calls) for kind, layers in kinds.items()}
            yield {"in": inside, "out": width, "rows": rows, **{kind: 4 * inside * width / of_one for kind, of_one in spent.items()}}


def _turning(layers: list[nn.Module], x: Tensor) -> Callable[[], Tensor]:
    """A call of the next layer each time."""
    turn = itertools.cycle(layers)
    return lambda: next(turn)(x)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="write everything measured to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    origin = Origin(arguments.threads)
    rate = measured_bandwidth()
    print(f"{origin}, bandwidth {rate / 1e9:.1f} GB/s")
    table = []
    for row in measured():
        table.append(row)
        rates = f"plain {row['plain'] / 1e9:5.1f} GB/s, packed {row['packed'] / 1e9:5.1f}"
        print(f"  {row['in']:>5} → {row['out']:<5} {row['rows']:>4} rows: {rates}")
    origin.write(arguments.json, copy=rate, table=table)


if __name__ == "__main__":
    main()
