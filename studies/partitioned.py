"""One attention on keys and values written in place, compared with MARché's two parts joined by an online softmax.

MARché (arXiv 2506.12035), Appendix B, compares its attention in two parts with one that first concatenates the keys and values of
active and cached tokens. The package's method uses a third variant: the active tokens' keys and values are written to their positions among
the others, and one ordinary attention reads them all. Variants, on the shape of one decoder block of a published MAR:

- ``in place``     the write and one attention;
- ``concatenated`` the write, both parts concatenated, and one attention: the paper's baseline;
- ``partitioned``  the write and the paper's attention in two parts, with ordinary matrix products and no kernel of its own.

As in the paper, the cached part is gathered before the clock starts. Variants alternate within a round, in an order
that rotates from round to round; a value is the median over rounds of the ratio of two variants of one round, with a bootstrap interval.

    python -m studies.partitioned [--model mar-b] [--rounds 31] [--threads 2] [--batch 4] [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.masked_layout import MaskedLayout
from cachemark.methods.base.partial import Places, wide
from cachemark.methods.marche import joined
from cachemark.models.catalogue import masked_models as masked
from cachemark.models.protocol import ModelEntry
from cachemark.models.registry import MODELS

from .origin import Origin

assert masked  # importing it registers the models
ACTIVE = (16, 32, 64, 128)  # active tokens; all others are cached
PAIRS = (("concatenated", "in place"), ("partitioned", "in place"), ("concatenated", "partitioned"))
REPEATS = 20  # calls of a variant within a round
RESAMPLES = 2000


def variants_of(layout: MaskedLayout, active: int) -> dict[str, Callable[[], Tensor]]:
    """Return each variant by name, on the same random numbers."""
    draw, rows = torch.Generator().manual_seed(0), layout.rows

    def normal(tokens: int) -> Tensor:
        return torch.randn(rows, layout.heads, tokens, layout.head_dim, generator=draw)

    places = Places("decoder", [0], layout, rows, Memory())
    places.fill(0, normal(layout.places), normal(layout.places))
    q, k, v = normal(active), normal(active), normal(active)
    order = torch.rand(rows, layout.places, generator=draw).argsort(1)
    at, others = order[:, :active].sort(1).values, order[:, active:]
    cached = [part.gather(2, wide(others, part)) for part in places.read(0, layout.places)]

    def in_place() -> Tensor:
        return F.scaled_dot_product_attention(q, *places.update(0, k, v, at, layout.places))

    def concatenated() -> Tensor:
        places.update(0, k, v, at, layout.places)
        return F.scaled_dot_product_attention(q, torch.cat((k, cached[0]), 2), torch.cat((v, cached[1]), 2))

    def partitioned() -> Tensor:
        places.update(0, k, v, at, layout.places)
        return joined(q, (k, v), (cached[0], cached[1]))

    return {"in place": in_place, "concatenated": concatenated, "partitioned": partitioned}


@torch.inference_mode()
def ratios(layout: MaskedLayout, active: int, rounds: int) -> dict[str, Any]:
    """Return the seconds per call of every variant in every round, the largest difference of results, and the ratios."""
    variants = variants_of(layout, active)
    outputs = {name: run() for name, run in variants.items()}  # warm-up
    apart = max(float((out - outputs["in place"]).abs().max()) for out in outputs.values())
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds):
        turn = number % len(variants)
        for name in [*variants][turn:] + [*variants][:turn]:
            start = time.perf_counter()
            for _ in range(REPEATS):
                variants[name]()
            seconds[name].append((time.perf_counter() - start) / REPEATS)
    by_pair = {f"{a}/{b}": [x / y for x, y in zip(seconds[a], seconds[b], strict=True)] for a, b in PAIRS}
    return {"active": active, "cached": layout.places - active, "rounds": rounds, "apart": apart, "seconds": seconds, "ratios": by_pair}


def interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[round(0.025 * RESAMPLES)], medians[round(0.975 * RESAMPLES) - 1]


def main() -> None:
    """Print the ratios for each number of active tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mar-b")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--json", help="write everything measured to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    origin = Origin(arguments.threads)
    entry: ModelEntry = MODELS.get(arguments.model)
    layout = entry.shape(entry.presets["paper"], arguments.batch)
    assert isinstance(layout, MaskedLayout)
    print(origin)
    print(f"one decoder block of {arguments.model}, batch {arguments.batch} + CFG, fp32")
    results = [ratios(layout, active, arguments.rounds) for active in ACTIVE]
    for result in results:
        print(f"{result['active']} active, {result['cached']} cached tokens; outputs apart by {result['apart']:.1e}")
        for name, values in result["ratios"].items():
            low, high = interval(values)
            print(f"  time {name}: median {statistics.median(values):.3f}, 95 % {low:.3f} … {high:.3f}, n = {len(values)}")
    origin.write(arguments.json, results=results)


if __name__ == "__main__":
    main()
