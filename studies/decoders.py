"""Speedup of parallel decoding over sequential decoding, and the speedup that its passes allow.

The bundled tiny-llamagen runs in fp32 on the CPU with guidance 1.5, at batch 1 and 4, with the full cache and LineAR at a quarter. A
decoder that generates *a* tokens per pass, at *a\\** times the cost of a pass with one token, can gain *a*/*a\\**. All three are measured
here:

- the gain: time of sequential decoding over time of Jacobi decoding, for the same images in turns, for several batches of seeds;
- the tokens per pass, from the passes that ran;
- the cost of a pass: the same passes once more, with the same widths and acceptances, relative to passes of one token. Tokens are given in
  both, so nothing is sampled, accepted or drafted. Both evict the same lines.

More than 100 % can be reached, since sequential decoding draws noise in one call per token. With one thread, `--clock cpu` counts the CPU
time of this process, which other work on the machine disturbs less.

    python -m studies.decoders [--batches 16] [--window 8] [--threads 1] [--clock wall|cpu] [--json FILE]

`--json studies/decoders.json` keeps the values for the table of the site.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.contract.decoder import Decoder
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.decoders.jacobi import Jacobi
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.models.llamagen import LlamaGen
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from tools.pages.decoders import keep

from .origin import Origin

MODEL, SAMPLING, BATCHES = "tiny-llamagen", Sampling(cfg_scale=1.5), (1, 4)
METHODS = ("full", "linear 1/4")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Replay(Decoder):
    """Repeats the passes of another decoder on the same images, with known ``tokens`` (batch, N)."""

    def __init__(self, ran: Decoder, tokens: Tensor) -> None:
        self.ran, self.known = ran, tokens

    @property
    def reach(self) -> int:
        return [*self.ran.fed, 1][len(self.fed)]

    def judge(self, known: int, logits: Tensor, tokens: Tensor) -> int:
        if known == 0:
            tokens.copy_(self.known)
        return self.ran.kept[len(self.kept)]


class Cell:
    """A method at a batch size, with one memory for each kind of pass, which generations reuse."""

    def __init__(self, model: LlamaGen, name: str, batch: int, clock: Callable[[], float]) -> None:
        self.clock, self.model, self.batch, self.layout = clock, model, batch, model.layout(range(batch), SAMPLING)
        self.method: Callable[[], Method] = Full
        if name != "full":
            parameters = Linear.parameters_for(Fraction(name.split()[1]), self.layout)
            self.method = lambda: Linear.build(parameters)
        self.memories: dict[str, Memory] = {}

    def run(self, kind: str, first: int, decoder: Decoder | None = None, forced: Tensor | None = None) -> tuple[float, Tensor]:
        """Return seconds and tokens of the images from seed ``first`` on."""
        seeds = list(range(first, first + self.batch))
        memory = self.memories.setdefault(kind, Memory())
        began = self.clock()
        labels = torch.tensor([seed % 10 for seed in seeds])
        tokens = self.model.generate(labels, seeds, self.method(), SAMPLING, memory, decoder=decoder, forced=forced)
        return self.clock() - began, tokens

    def compare(self, number: int, window: int) -> dict[str, float]:
        """Measure all values of one batch of images. Variants take turns, so that drift of the machine affects all."""
        first, decoder, variants = number * self.batch, Jacobi(window=window), dict[str, tuple[float, Tensor]]()
        for variant in ("sequential", "jacobi") if number % 2 else ("jacobi", "sequential"):
            variants[variant] = self.run(variant, first, decoder if variant == "jacobi" else None)
        (sequential, own), (jacobi, tokens) = variants["sequential"], variants["jacobi"]
        per_token = self.run("sequential", first, forced=own)[0] / self.layout.visual
        replay = Replay(decoder, own)
        cost = self.run("jacobi", first, replay)[0] / len(decoder.fed) / per_token
        assert (replay.fed, replay.kept) == (decoder.fed, decoder.kept), "the replay must repeat the passes"
        rate, gain = self.layout.visual / len(decoder.fed), sequential / jacobi
        return {"gain": gain, "tokens per pass": rate, "cost": cost, "allowed": rate / cost, "reached": gain * cost / rate,
                "agreement": float((own == tokens).float().mean())}


def measure(cell: Cell, name: str, window: int, batches: int) -> dict[str, Any]:
    """Measure all values for several batches of seeds, after a warm-up batch."""
    cell.compare(0, window)
    measured = [cell.compare(number, window) for number in range(batches)]
    return {"method": name, "batch": cell.batch, "window": window, "batches": batches,
            **{figure: [round(values[figure], 4) for values in measured] for figure in measured[0]}}


def line_of(result: dict[str, Any]) -> str:
    """Return the line of one result."""
    low, gain, high = statistics.quantiles(result["gain"], n=4)
    tokens, cost, allowed, reached = (statistics.median(result[name]) for name in ("tokens per pass", "cost", "allowed", "reached"))
    return (f"batch {result['batch']}, {result['method']:10}  gain {gain:.2f} ({low:.2f} … {high:.2f})  tokens/pass {tokens:.2f}  "
            f"a pass costs {cost:.2f}  allowed {allowed:.2f}  reached {reached:.0%}  agreement {min(result['agreement']):.3f}")


def main() -> None:
    """Measure every method and batch size, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=16, help="number of batches, each with other seeds, since time depends on the image")
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    origin = Origin(arguments.threads)
    print(origin)
    print(f"{MODEL}, fp32, jacobi {arguments.window}, {arguments.batches} batches of seeds, {arguments.clock} clock; quartiles in brackets")
    model = MODELS.get(MODEL).load(Request("cpu", torch.float32)).generator
    results = []
    for batch in BATCHES:
        for name in METHODS:
            results.append(measure(Cell(model, name, batch, CLOCKS[arguments.clock]), name, arguments.window, arguments.batches))
            print(line_of(results[-1]), flush=True)
    if arguments.json:
        command = f"studies/decoders.py --batches {arguments.batches} --window {arguments.window} --clock {arguments.clock}"
        keep("speed", {"command": command, "commit": origin.commit, "machine": origin.environment.device,
                       "torch": torch.__version__, "results": results}, arguments.json)


if __name__ == "__main__":
    main()
