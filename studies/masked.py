"""Masked models on the CPU: speedups from computing less, as ratios within one process.

The MAR-B shape with random weights, fp32, batch 4 with guidance, passes 23 … 31 of 64: one pass in which LazyMAR computes everything
and the eight that follow it (MARché computes everything in every third). Variants:

- ``full``       our full model: no cache, the head's embeddings and coefficients computed once;
- ``reference``  the head as its published code runs it;
- ``lazymar``    all four switches;
- ``marche``     the paper's defaults.

Variants alternate within a round, in an order that rotates from round to round; a value is the median over rounds of the ratio of two
variants of one round. Each speedup is printed with the bound by the FLOPs of the same passes. Before the clock starts, every variant runs
the passes that fill its caches. The value for a whole image combines the times of full and other passes, scaled by the FLOPs of the image's
own passes. Image decoding is left out.

    python -m studies.masked [--rounds 5] [--threads 2] [--batch 4] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cachemark.cache import random_streams as streams
from cachemark.cache.arena import Memory
from cachemark.cache.masked_layout import MaskedLayout, MaskedStep, masked_steps, placed, put
from cachemark.cache.timesteps import respaced
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.methods.full import Full
from cachemark.methods.lazymar import LazyMAR
from cachemark.methods.marche import MARche
from cachemark.models.catalogue import masked_models as masked
from cachemark.models.mar import MAR, guidance
from cachemark.models.protocol import ModelEntry, Request
from cachemark.models.registry import MODELS
from cachemark.roofline.masked_flops import ops_by_pass

from .origin import Origin

assert masked  # importing it registers the models
MODEL, PRESET = "mar-b", "fewer"
FIRST, LAST = 23, 31  # the timed passes, both included
FILL = 2  # passes before them that fill the caches: MARché's last full one is among them


@dataclass
class Variant:
    """A model and a method in the middle of a generation."""

    model: MAR
    method: Method
    memory: Memory

    def passes(self, steps: Sequence[MaskedStep], latents: Tensor, labels: Tensor, seeds: Sequence[int], sampling: Sampling) -> list[float]:
        """Run these passes on known ``latents`` (batch, N, C); return the seconds of each."""
        model, layout, batch = self.model, self.model.layout(seeds, sampling), len(labels)
        key = streams.seeds_tensor(seeds, labels.device)
        cond = torch.cat((model.class_emb(labels), model.fake_latent.expand(batch, -1)))
        prefix, schedule = model.prefix(cond), model.diffloss.schedule(respaced(model.config.diffusion), sampling.temperature)
        seconds = []
        for step in steps:
            start = time.perf_counter()
            hidden = model.decode(model.encode(prefix, latents, step, self.method), step, self.method)
            z, scale = model.conditions(hidden, step.generating), guidance(sampling, step, layout.visual)
            noise = model.noise(key, step.generating[:batch], len(schedule.process))
            drawn = model.diffloss.sample(z, noise, scale, schedule, step, self.method)
            self.method.end_step(step)
            latents = put(latents, step.generating[:batch], drawn)
            seconds.append(time.perf_counter() - start)
        return seconds


def variants_of(entry: ModelEntry, layout: MaskedLayout) -> dict[str, Variant]:
    """Return every variant by name, with its method at the start of a generation."""
    plain, eager = (entry.load(Request(engine=engine)).generator for engine in ("eager", "reference"))
    methods: dict[str, tuple[Any, Method]] = {"full": (plain, Full()), "reference": (eager, Full()), "lazymar": (plain, LazyMAR()),
                                              "marche": (plain, MARche())}
    variants = {name: Variant(model, method, Memory()) for name, (model, method) in methods.items()}
    for variant in variants.values():
        variant.method.begin(layout, variant.model.sites, variant.memory)
    return variants


@torch.inference_mode()
def measured(entry: ModelEntry, batch: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of every variant in every round and pass."""
    sampling, labels, seeds = entry.presets[PRESET], torch.arange(batch), list(range(batch))
    layout = entry.shape(sampling, batch)
    assert isinstance(layout, MaskedLayout)
    variants = variants_of(entry, layout)
    model = variants["full"].model
    order = model.order(streams.seeds_tensor(seeds, labels.device)).repeat(2, 1)
    steps = placed(masked_steps(layout, layout.steps), order)
    latents = torch.randn(batch, layout.visual, layout.channels, generator=torch.Generator().manual_seed(0))
    seconds: dict[str, list[list[float]]] = {name: [] for name in variants}
    for number in range(-1, rounds):  # the first one is to warm up
        names = list(variants)[number % len(variants) :] + list(variants)[: number % len(variants)]
        for name in names:
            variants[name].passes(steps[FIRST - FILL : FIRST], latents, labels, seeds, sampling)
            spent = variants[name].passes(steps[FIRST : LAST + 1], latents, labels, seeds, sampling)
            if number >= 0:
                seconds[name].append(spent)
    flops = {name: [sum(op.flops * op.times for op in ops if op.part != "method") // layout.batch
                    for ops in ops_by_pass(variant.method, layout)] for name, variant in variants.items()}
    return {"batch": batch, "rounds": rounds, "seconds": seconds, "flops": flops}


def ratios(measurements: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the time and FLOPs of every variant relative to full, in the timed passes and the whole image."""
    seconds, flops = measurements["seconds"], measurements["flops"]
    window = slice(FIRST, LAST + 1)
    table = {}
    for name in seconds:
        timed = [sum(a) / sum(b) for a, b in zip(seconds["full"], seconds[name], strict=True)]
        allowed = sum(flops["full"][window]) / sum(flops[name][window])
        table[name] = {"speedup": timed, "allowed": allowed, "whole image": image(measurements, name),
                       "whole image allowed": sum(flops["full"]) / sum(flops[name])}
    return table


def image(measurements: dict[str, Any], name: str) -> float:
    """Return the speedup of a whole image, from medians over rounds.

    Every pass takes as many seconds per FLOP as the timed passes of its kind: passes that compute as much as the full model, and others.
    """
    seconds = {variant: [statistics.median(column) for column in zip(*measurements["seconds"][variant], strict=True)]
               for variant in ("full", name)}
    full, mine = measurements["flops"]["full"], measurements["flops"][name]

    def rate(variant: str, flops: Sequence[int], whole: bool) -> float:
        timed = [i for i in range(FIRST, LAST + 1) if (full[i] == mine[i]) is whole]
        return sum(seconds[variant][i - FIRST] for i in timed) / sum(flops[i] for i in timed) if timed else 0.0

    kinds = {whole: rate(name, mine, whole) for whole in (True, False)}
    plain = sum(seconds["full"]) / sum(full[FIRST : LAST + 1])
    return plain * sum(full) / sum(kinds[a == b] * b for a, b in zip(full, mine, strict=True))


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--json", help="write everything measured to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    origin = Origin(arguments.threads)
    print(origin)
    print(f"{MODEL}, random weights, batch {arguments.batch} + CFG, fp32, passes {FIRST} … {LAST}")
    measurements = measured(MODELS.get(MODEL), arguments.batch, arguments.rounds)
    table = ratios(measurements)
    for name, row in table.items():
        middle, low, high = statistics.median(row["speedup"]), min(row["speedup"]), max(row["speedup"])
        print(f"  {name:10} {middle:.3f}× (least {low:.3f}, most {high:.3f}, n = {arguments.rounds}); FLOPs allow {row['allowed']:.3f}×, "
              f"of which {middle / row['allowed']:.1%}; whole image {row['whole image']:.3f}× of {row['whole image allowed']:.3f}×")
    origin.write(arguments.json, result=measurements, ratios=table)


if __name__ == "__main__":
    main()
