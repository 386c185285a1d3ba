"""Several tokens a pass against one, as ratios from one process: how much of what the passes allow is reached.

The packaged tiny-llamagen, fp32, on the CPU, guidance 1.5, at batch 1 and 4, beside the full cache and LineAR at a quarter. A decoder
that draws *a* tokens a pass, whose passes cost *a\\** times a pass of one token, can gain *a*/*a\\**. All three are measured here:

- the gain, time of sequential decoding over time under Jacobi iteration, of the same images in turns, at several batches of seeds;
- the tokens a pass, from the passes that ran;
- the cost of a pass by the tokens that it feeds, where these are given, so that nothing is drawn, judged or proposed. Beside LineAR it
  holds a share of each line's eviction, which is the larger the fewer passes a line takes, so that there more than all may be reached.

With one thread `--clock cpu` counts the seconds that this process computed, which other work on the machine disturbs less.

    python benchmarks/decoders.py [--batches 16] [--window 8] [--threads 1] [--clock wall|cpu] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.contract.decoder import Decoder
from cachemark.contract.method import Method
from cachemark.core import registry
from cachemark.core.spec import Sampling
from cachemark.decoders.jacobi import Jacobi
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.models import catalogue
from cachemark.models.llamagen import LlamaGen
from cachemark.models.protocol import Request
from origin import Origin

assert catalogue
MODEL, SAMPLING, BATCHES = "tiny-llamagen", Sampling(cfg_scale=1.5), (1, 4)
METHODS = ("full", "linear 1/4")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Cell:
    """A method at a batch size: generations of it in storage that is kept, one for every kind of pass."""

    def __init__(self, model: LlamaGen, name: str, batch: int, clock: Callable[[], float]) -> None:
        self.clock, self.model, self.batch, self.layout = clock, model, batch, model.layout(range(batch), SAMPLING)
        self.method: Callable[[], Method] = Full
        if name != "full":
            knobs = Linear.knobs_for(Fraction(name.split()[1]), self.layout)
            self.method = lambda: Linear.build(knobs)
        self.memories: dict[int, Memory] = {}

    def run(self, first: int, decoder: Decoder | None, forced: Tensor | None = None) -> tuple[float, Tensor]:
        """Seconds and tokens of the images from seed ``first`` on."""
        seeds = list(range(first, first + self.batch))
        memory = self.memories.setdefault(decoder.reach if decoder else 0, Memory())
        began = self.clock()
        labels = torch.tensor([seed % 10 for seed in seeds])
        tokens = self.model.generate(labels, seeds, self.method(), SAMPLING, memory, decoder=decoder, forced=forced)
        return self.clock() - began, tokens

    def costs(self, window: int, first: int, tokens: Tensor) -> dict[int, float]:
        """Seconds of a pass by the number of tokens that it feeds, 1, 2, 4 … ``window``, where these are the given ``tokens``."""
        found = {}
        for count in (1, *(2**i for i in range(1, 12) if 2**i < window), window):
            decoder = Jacobi(window=count) if count > 1 else None
            seconds = self.run(first, decoder, tokens)[0]
            found[count] = seconds / (len(decoder.fed) if decoder else self.layout.visual)
        return found


def measure(cell: Cell, name: str, window: int, batches: int) -> dict[str, Any]:
    """Times of both decoders over batches of seeds, in turns, and what their passes allow at the costs of the same minute."""
    each: list[dict[str, float]] = []
    cell.costs(window, 0, cell.run(0, None)[1])  # warm-up
    cell.run(0, Jacobi(window=window))
    for number in range(batches):
        arms: dict[str, tuple[float, Tensor]] = {}
        decoder, first = Jacobi(window=window), number * cell.batch
        for arm in ("sequential", "jacobi") if number % 2 else ("jacobi", "sequential"):
            arms[arm] = cell.run(first, decoder if arm == "jacobi" else None)
        (sequential, own), (jacobi, tokens) = arms["sequential"], arms["jacobi"]
        costs = cell.costs(window, first, own)
        cost = float(np.interp(decoder.fed, list(costs), list(costs.values())).mean()) / costs[1]
        rate, gain = cell.layout.visual / len(decoder.fed), sequential / jacobi
        each.append({"gain": gain, "tokens per pass": rate, "cost": cost, "allowed": rate / cost, "reached": gain * cost / rate,
                     "agreement": float((own == tokens).float().mean())})
    return {"method": name, "batch": cell.batch, "window": window, "batches": batches,
            **{figure: [found[figure] for found in each] for figure in each[0]}}


def told(result: dict[str, Any]) -> str:
    """One line of a cell."""
    low, gain, high = statistics.quantiles(result["gain"], n=4)
    tokens, cost, allowed, reached = (statistics.median(result[name]) for name in ("tokens per pass", "cost", "allowed", "reached"))
    return (f"batch {result['batch']}, {result['method']:10}  gain {gain:.2f} ({low:.2f} … {high:.2f})  tokens/pass {tokens:.2f}  "
            f"a pass costs {cost:.2f}  allowed {allowed:.2f}  reached {reached:.0%}  agreement {min(result['agreement']):.3f}")


def main() -> None:
    """Measure every cell and print a line of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=16, help="of different seeds, for time depends on the image")
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", help="write everything measured to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    origin = Origin(arguments.threads)
    print(origin)
    print(f"{MODEL}, fp32, jacobi {arguments.window}, {arguments.batches} batches of seeds, {arguments.clock} clock; quartiles in brackets")
    model = registry.models.get(MODEL).load(Request("cpu", torch.float32)).generator
    results = []
    for batch in BATCHES:
        for name in METHODS:
            results.append(measure(Cell(model, name, batch, CLOCKS[arguments.clock]), name, arguments.window, arguments.batches))
            print(told(results[-1]), flush=True)
    origin.write(arguments.json, results=results)


if __name__ == "__main__":
    main()
