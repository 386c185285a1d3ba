"""Speed ratios within one process: the full cache over papers' baselines, the cost of hooks, and LineAR.

Four variants on the LlamaGen-B shape with random weights, fp32, on the CPU:

- ``full``       our full cache, through the method interface;
- ``reference``  one padded buffer under a mask with un-fused attention, as in LlamaGen's published generation code, with plain layers;
- ``bare``       our full cache written by hand, without methods, slots or steps, to measure the cost of the interface;
- ``linear …``   LineAR at a quarter and a sixth of the cache, with the speedup that its saved bytes and FLOPs allow on this machine.

Variants alternate within a round, in an order that rotates from round to round; a value is the median over rounds of the ratio of
two variants of one round. Image decoding is left out, since it is the same in all variants.

    python -m studies.ratios [--rounds 11] [--threads 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.cache import random_streams as streams
from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.core.limits import Rates
from cachemark.core.spec import Sampling
from cachemark.machine.rates import rates
from cachemark.methods.base.paper_baseline import PaddedFull
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.models import costs
from cachemark.models.layers import packed
from cachemark.models.llamagen import SIZES, LlamaGen, rotate_pairs
from cachemark.models.sampling import draw, guide
from cachemark.roofline.bill import bill

from .origin import Origin

SHAPES = ((16, 4), (24, 2))  # grid, images of a batch; guidance doubles the rows
SAMPLING = Sampling(cfg_scale=2.0)
BUDGETS = ("1/4", "1/6")
PAIRS = (("reference", "full"), ("full", "bare"), *(("full", f"linear {budget}") for budget in BUDGETS))


def through_methods(model: LlamaGen, build: Callable[[], Method]) -> Callable[[Tensor, list[int]], Tensor]:
    """Return a generation under a method, with storage that generations reuse."""
    memory = Memory()
    return lambda labels, seeds: model.generate(labels, seeds, build(), SAMPLING, memory)


def bare(model: LlamaGen) -> Callable[[Tensor, list[int]], Tensor]:
    """Return a generation with a full cache by hand: two buffers per layer, attention on the live prefix."""
    buffers: dict[int, Tensor] = {}

    @torch.inference_mode()
    def generate(labels: Tensor, seeds: list[int]) -> Tensor:
        c, rows = model.config, 2 * len(labels)
        tokens, shape = c.grid**2, (2, c.layers, rows, c.groups, c.grid**2, c.head_dim)
        k, v = buffers.setdefault(0, torch.zeros(shape)).zero_()
        key, rope = streams.seeds_tensor(seeds, "cpu"), model.rope
        out = torch.empty(len(labels), tokens, dtype=torch.int64)
        x = model.cls_embedding(torch.cat((labels, torch.full_like(labels, c.classes)))[:, None])
        for i in range(tokens):
            for layer, block in enumerate(model.layers):
                a = block.attention
                qkv = a.wqkv(block.attention_norm(x)).unflatten(-1, (-1, c.head_dim))
                turned = rotate_pairs(qkv[:, :, : 2 * c.heads], rope[i : i + 1]).transpose(1, 2)
                k[layer, :, :, i] = turned[:, c.heads :, 0]
                v[layer, :, :, i] = qkv[:, 0, 2 * c.heads :]
                mixed = F.scaled_dot_product_attention(turned[:, : c.heads], k[layer, :, :, : i + 1], v[layer, :, :, : i + 1])
                x = x + a.wo(mixed.transpose(1, 2).flatten(2))
                x = x + block.feed_forward(block.ffn_norm(x))
            out[:, i] = token = draw(guide(model.logits(x[:, -1]), SAMPLING, i), SAMPLING, key, i)
            x = model.tok_embeddings(token.repeat(2))[:, None]
        return out

    return generate


def variants_of(plain: LlamaGen, model: LlamaGen, batch: int) -> dict[str, Callable[[Tensor, list[int]], Tensor]]:
    """Return every variant by name; ``model`` is ``plain`` with packed layers."""
    return {
        "full": through_methods(model, Full),
        "reference": through_methods(plain, PaddedFull),
        "bare": bare(model),
        **{f"linear {budget}": through_methods(model, partial(linear, model, batch, budget)) for budget in BUDGETS},
    }


def linear(model: LlamaGen, batch: int, budget: str) -> Linear:
    """Return LineAR at a fraction of the cache."""
    method = Linear.build(Linear.parameters_for(Fraction(budget), model.layout(range(batch), SAMPLING)))
    assert isinstance(method, Linear)
    return method


def ideals(model: LlamaGen, batch: int, rates: Rates) -> dict[str, float]:
    """Return roofline speedups over the full cache, without image decoding, and its roofline time in seconds."""
    parts, layout = costs.llamagen(model.config, lambda: None), model.layout(range(batch), SAMPLING)
    full = bill(Full(), layout, parts, images=False).roofline_time(rates)
    variants = {f"full/linear {budget}": linear(model, batch, budget) for budget in BUDGETS}
    gains = {name: full / bill(variant, layout, parts, images=False).roofline_time(rates) for name, variant in variants.items()}
    return {"roofline time of full": full, **gains}


def measure(grid: int, batch: int, rounds: int, rates: Rates) -> dict[str, Any]:
    """Return the seconds of every variant in every round, and the ratios."""
    plain = LlamaGen(replace(SIZES["B"], grid=grid)).initialise(0).eval().requires_grad_(False)
    model = packed(deepcopy(plain))
    labels, seeds, variants = torch.arange(batch), list(range(batch)), variants_of(plain, model, batch)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    tokens = {name: variant(labels, seeds) for name, variant in variants.items()}  # warm-up
    agree = {name: float((tokens[name] == tokens["full"]).float().mean()) for name in ("reference", "bare")}
    for number in range(rounds):
        order = list(variants)[number % len(variants) :] + list(variants)[: number % len(variants)]
        for name in order:
            start = time.perf_counter()
            variants[name](labels, seeds)
            seconds[name].append(time.perf_counter() - start)
    ratios = {f"{a}/{b}": [x / y for x, y in zip(seconds[a], seconds[b], strict=True)] for a, b in PAIRS}
    return {"grid": grid, "batch": batch, "rounds": rounds, "agreement with full": agree, "seconds": seconds, "ratios": ratios,
            "bytes per step": step_bytes(plain, batch), "ideal": ideals(model, batch, rates)}


def step_bytes(model: LlamaGen, batch: int) -> dict[str, float]:
    """Return the mean MB that a pass must move: weights and live entries once, the padded buffer as its code reads it."""
    c = model.config
    tokens, row = c.grid**2, 2 * c.layers * c.groups * c.head_dim * 4
    tables = (model.tok_embeddings.weight, model.cls_embedding.embedding_table.weight)  # a pass reads only a few of its rows
    weights = sum(p.nbytes for p in model.parameters()) - sum(t.nbytes for t in tables)
    padded = -(-(tokens + 1) // 8) * 8
    return {"weights": weights / 1e6, "live KV": 2 * batch * row * (tokens + 1) / 2 / 1e6, "padded KV": 2 * batch * row * padded / 1e6}


def share(ratio: float, allowed: float | None) -> str:
    """Return a ratio as a fraction of the roofline speedup."""
    return "" if allowed is None else f"; ideal {allowed:.3f}, of which {ratio / allowed:.0%}"


def main() -> None:
    """Measure both shapes and print the medians with their quartiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="write everything measured to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    origin = Origin(arguments.threads)
    print(origin)
    here_rates = rates("cpu", arguments.threads, ["float32"])["float32"]
    print(f"{here_rates.bandwidth / 1e9:.1f} GB/s, {here_rates.peak_flops / 1e9:.0f} GFLOP/s")
    results = []
    for grid, batch in SHAPES:
        result = measure(grid, batch, arguments.rounds, here_rates)
        results.append(result)
        print(f"LlamaGen-B {grid}×{grid}, batch {batch} + CFG, fp32, {arguments.rounds} rounds; agreement {result['agreement with full']}")
        print(f"  MB per pass: { {k: round(v, 1) for k, v in result['bytes per step'].items()} }")
        for name, values in result["ratios"].items():
            low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
            print(f"  time {name}: median {middle:.3f}, quartiles {low:.3f} … {high:.3f}{share(middle, result['ideal'].get(name))}")
        least = result["ideal"]["roofline time of full"]
        print(f"  full: {statistics.median(result['seconds']['full']) / least:.2f} times its roofline time of {least:.2f} s")
    origin.write(arguments.json, results=results)


if __name__ == "__main__":
    main()
