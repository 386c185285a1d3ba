"""Fraction of the byte-bound speedup that is reached on the CPU: LlamaGen-B, 24×24, batch 2 with guidance, fp32.

A pass must read every weight once and every live key and value once, and write its own. On a memory-bound CPU, the ratio of bytes of two
variants is the best possible ratio of their times. The bytes are counted from the live lengths of every pass, not from a formula.

- ``full``       the full cache;
- ``linear``     LineAR at a sixth of it;
- ``reference``  the papers' kind of baseline: a padded buffer under a mask and the un-fused kernel, which moves K five times (copied
                 to the query heads, scaled, read) and V three times; its layers are plain, those of the others packed.

All variants generate at the same time, each in its own thread, and take turns after every line of tokens, so that only one runs at a time
and other work on the machine affects all alike. A value is the ratio of whole generations; quartiles are over lines.

    python -m studies.ideal [--rounds 3] [--threads 2] [--variants full,linear,reference] [--json FILE] [--profile]
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "100000")  # workers of a waiting variant sleep and do not disturb the running one

import argparse
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from threading import Condition, Thread

import torch
from torch.profiler import ProfilerActivity, profile

from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.methods.base.paper_baseline import PaddedFull
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.models.layers import packed
from cachemark.models.llamagen import SIZES, LlamaGen

from .origin import Origin

GRID, BATCH, SHARE = 24, 2, Fraction(1, 6)
SAMPLING = Sampling(cfg_scale=2.0)
MOVED = {"reference": 4.0}  # moves of a key or value per pass, averaged over K and V; others read it once
PAIRS = (("full", "linear"), ("reference", "full"))


@dataclass
class Turns:
    """Runs the variants one at a time, in an order that rotates from line to line."""

    variants: list[str]
    ready: Condition = field(default_factory=Condition)
    now: int = 0
    left: set[str] = field(default_factory=set)

    def wait(self, name: str) -> None:
        with self.ready:
            self.ready.wait_for(lambda: self.variants[self.now % len(self.variants)] == name)

    def give(self, name: str, *, over: bool = False) -> None:
        with self.ready:
            self.left |= {name} if over else set()
            self.now += 1
            while len(self.left) < len(self.variants) and self.variants[self.now % len(self.variants)] in self.left:
                self.now += 1
            self.ready.notify_all()


@dataclass
class Variant:
    """A method with its storage, and the seconds and bytes of every line of its last generation."""

    name: str
    model: LlamaGen
    weights: int  # bytes of the weights that a pass reads
    build: Callable[[], Method]
    memory: Memory = field(default_factory=Memory)
    seconds: list[float] = field(default_factory=list)
    live: list[int] = field(default_factory=list)

    def generate(self, turns: Turns) -> None:
        self.seconds, self.live, method = [], [], self.build()

        def mark(index: int) -> None:
            nonlocal began
            self.live.append(method.banks[0].live[0] if method.banks else -(-(GRID**2 + 1) // 8) * 8)
            if (index + 1) % GRID == 0:
                self.seconds.append(time.perf_counter() - began)
                turns.give(self.name, over=index + 1 == GRID**2)
                if index + 1 < GRID**2:
                    turns.wait(self.name)
                began = time.perf_counter()

        turns.wait(self.name)
        began = time.perf_counter()
        self.model.generate(torch.arange(BATCH), list(range(BATCH)), method, SAMPLING, self.memory, mark=mark)

    @property
    def bytes(self) -> list[float]:
        """Return the bytes of every line: weights, live entries and the written entry of each of its passes."""
        c = self.model.config
        entry = 2 * BATCH * 2 * c.layers * c.groups * c.head_dim * 4
        passes = [self.weights + entry * (n * MOVED.get(self.name, 1.0) + 1) for n in self.live]
        return [sum(passes[at : at + GRID]) for at in range(0, len(passes), GRID)]


def together(variants: list[Variant], number: int) -> None:
    """Run one generation of every variant in turns."""
    turns = Turns([variant.name for variant in variants[number % len(variants) :] + variants[: number % len(variants)]])
    threads = [Thread(target=variant.generate, args=(turns,)) for variant in variants]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def compared(slow: Variant, fast: Variant) -> dict[str, float]:
    """Return the measured and the ideal ratio of one round."""
    lines = [a / b for a, b in zip(slow.seconds, fast.seconds, strict=True)]
    low, middle, high = statistics.quantiles(lines, n=4)
    measured, ideal = sum(slow.seconds) / sum(fast.seconds), sum(slow.bytes) / sum(fast.bytes)
    return {"measured": measured, "ideal": ideal, "share": measured / ideal, "low": low, "median": middle, "high": high}


def profiled(variant: Variant) -> str:
    """Return the time of one generation by operation."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        variant.generate(Turns([variant.name]))
    return str(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=40))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--variants", default="full,linear,reference", help="which of them, by name")
    parser.add_argument("--json", help="write everything measured to this file")
    parser.add_argument("--profile", action="store_true", help="also print where the time of full and linear goes")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    origin = Origin(arguments.threads)
    print(origin)
    plain = LlamaGen(replace(SIZES["B"], grid=GRID)).initialise(0).eval().requires_grad_(False)
    tables = (plain.tok_embeddings.weight, plain.cls_embedding.embedding_table.weight)  # a pass reads only a few of its rows
    weights = sum(p.nbytes for p in plain.parameters()) - sum(t.nbytes for t in tables)
    models = {"reference": plain, "full": (fast := packed(deepcopy(plain))), "linear": fast}
    parameters = Linear.parameters_for(SHARE, plain.layout(range(BATCH), SAMPLING))
    builds: dict[str, Callable[[], Method]] = {"full": Full, "linear": lambda: Linear.build(parameters), "reference": PaddedFull}
    variants = {name: Variant(name, models[name], weights, builds[name]) for name in arguments.variants.split(",")}
    pairs = [(a, b) for a, b in PAIRS if {a, b} <= variants.keys()]
    rounds = []
    for number in range(arguments.rounds + 1):
        together(list(variants.values()), number)
        if number:  # the first round is the warm-up
            rounds.append({f"{a}/{b}": compared(variants[a], variants[b]) for a, b in pairs})
            for pair, values in rounds[-1].items():
                print(f"round {number}, time {pair}: {values['measured']:.3f}, by bytes {values['ideal']:.3f}, "
                      f"share of it {values['share']:.3f}; lines {values['low']:.3f} … {values['high']:.3f}", flush=True)
    for pair in rounds[0]:
        print(f"{pair}: median share of the ideal {statistics.median(r[pair]['share'] for r in rounds):.3f}")
    for name in {"full", "linear"} & variants.keys() if arguments.profile else ():
        print(f"\n{name}\n{profiled(variants[name])}")
    origin.write(arguments.json, rounds=rounds)


if __name__ == "__main__":
    main()
