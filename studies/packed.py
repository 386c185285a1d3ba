"""Packed and plain weights on the CPU: ratios of times of linear layers by rows, and of whole generations.

The first table has plain time over packed time of one layer, the median of several tries in turn; above 1, packed weights are faster.
Layers take turns from a set that no cache can keep, as in a model. ``PACKED_ROWS`` of models/layers.py is chosen from it.

The second has generations of full-size shapes with random weights, fp32, without image decoding, in four ways that alternate in one
process: all products plain, all packed, by the number of rows as the suite does it, and the papers' baseline (``engine = "reference"``).
Values are medians (min–max) of the time over that of the suite. Infinity-2B is cut to its first 4 of 32 blocks, and MAR-B makes 8 passes.

    python -m studies.packed [--threads 2] [--rounds 3] [--models NAME …] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.methods.base.paper_baseline import REFERENCE
from cachemark.methods.full import Full
from cachemark.models import layers
from cachemark.models.catalogue.family import register
from cachemark.models.catalogue.text_to_image import infinity_model
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS

from .origin import Origin

SHAPES = ((768, 768), (768, 3072), (1024, 1024), (1024, 4096), (4096, 1024))
ROWS = (1, 2, 4, 8, 32, 64, 128, 256, 400, 640, 1280)
COLD = 100_000_000  # bytes of weights that are read before a layer comes again
TRIES, LEAST_SECONDS = 5, 0.08
KERNELS = {"plain": range(0), "packed": range(1, 2**62), "suite": layers.PACKED_ROWS, "reference": range(0)}
CUT, BLOCKS = "infinity-2b-256-cut", 4
BATCHES = {"llamagen-b": 2, "mar-b": 1, "var-d16": 2, CUT: 2}
PASSES = 8  # of MAR-B


def seconds(kernel: str, stack: Sequence[nn.Module], x: Tensor, rounds: int) -> float:
    """Return the seconds of one call, with the packed layers of ``stack`` called in turn."""
    layers.PACKED_ROWS = KERNELS[kernel]
    start = time.perf_counter()
    for _ in range(rounds):
        for layer in stack:
            layer(x)
    return (time.perf_counter() - start) / rounds / len(stack)


@torch.inference_mode()
def by_rows() -> Iterator[dict[str, float]]:
    """Yield plain time over packed time by rows, for each shape."""
    for inside, width in SHAPES:
        stack = [layers.Packed(layers.Projection(inside, width)) for _ in range(max(2, COLD // (4 * inside * width)))]
        row: dict[str, float] = {"in": inside, "out": width}
        for rows in ROWS:
            x = torch.randn(rows, inside)
            warm = max(seconds(kernel, stack, x, 1) for kernel in ("plain", "packed"))
            rounds = max(1, int(LEAST_SECONDS / warm / len(stack)))
            tries = [seconds("plain", stack, x, rounds) / seconds("packed", stack, x, rounds) for _ in range(TRIES)]
            row[str(rows)] = statistics.median(tries)
        yield row


def generations(name: str) -> dict[str, Callable[[], Tensor]]:
    """Return calls that generate a batch with the full cache: of the suite's baseline, and of the papers'."""
    if name == CUT:
        model = infinity_model("2B", 256)
        register(replace(model, name=CUT, config=replace(model.config, depth=BLOCKS, chunks=1)))
    entry, batch = MODELS.get(name), BATCHES[name]
    labels, seeds, sampling = torch.arange(batch), list(range(batch)), entry.presets["paper"]
    if entry.paradigm == "masked":
        sampling = replace(sampling, steps=PASSES)

    def of(engine: str, method: Callable[[], Method]) -> Callable[[], Tensor]:
        generator, memory = entry.load(Request(engine=engine)).generator, Memory()
        return torch.inference_mode()(lambda: generator.generate(labels, seeds, method(), sampling, memory))

    return {"suite": of("eager", Full), "reference": of("reference", REFERENCE[entry.paradigm])}


def whole(name: str, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of generations by variant, in turns."""
    calls, variants = generations(name), list(KERNELS)
    spent: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(rounds + 1):  # the first is the warm-up
        first = number % len(variants)
        for variant in variants[first:] + variants[:first]:
            layers.PACKED_ROWS = KERNELS[variant]
            start = time.perf_counter()
            calls["reference" if variant == "reference" else "suite"]()
            spent[variant].append(time.perf_counter() - start)
    return {variant: values[1:] for variant, values in spent.items()}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="*", choices=list(BATCHES), default=list(BATCHES))
    parser.add_argument("--json", help="write everything measured to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    origin = Origin(arguments.threads)
    print(f"{origin}, {torch.backends.cpu.get_cpu_capability()}\n\n| in → out | {' | '.join(map(str, ROWS))} |")
    table = []
    for row in by_rows():
        table.append(row)
        print(f"| {row['in']} → {row['out']} | {' | '.join(f'{row[str(rows)]:.2f}' for rows in ROWS)} |", flush=True)
    seconds_of = {}
    print("\n| model, batch | suite, s | plain / suite | packed / suite | papers' baseline / suite |")
    for name in arguments.models:
        seconds_of[name] = spent = whole(name, arguments.rounds)
        ratios = {variant: [a / b for a, b in zip(spent[variant], spent["suite"], strict=True)] for variant in spent if variant != "suite"}
        cells = [f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})" for values in ratios.values()]
        print(f"| {name}, {BATCHES[name]} | {statistics.median(spent['suite']):.1f} | {' | '.join(cells)} |", flush=True)
    origin.write(arguments.json, layers=table, generations=seconds_of)


if __name__ == "__main__":
    main()
