"""Next-scale models on the CPU: speed ratios within one process, and a profile of a generation.

Variants on the VAR-d16 shape with random weights, fp32, batch with guidance:

- ``full``       our full cache: slots, the last scale in the workspace, AdaLN's projections computed once;
- ``reference``  VAR's published cache and blocks: concatenation in every scale, AdaLN projected again in every scale;
- ``ams_kv``     AMS-KV with a sixth of the layers demanding.

Variants alternate within a round, in an order that rotates from round to round; a value is the median over rounds of the ratio of
two variants of one round. Image decoding is left out of the ratios, since it is the same in all variants.

    python -m studies.scales [--rounds 11] [--threads 2] [--batch 2] [--json FILE]
    python -m studies.scales --profile      # one generation by scale and part, image decoding included
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, Step, Tokens
from cachemark.contract.block import Block
from cachemark.contract.method import Method
from cachemark.methods.ams_kv import AMSKV
from cachemark.methods.base.paper_baseline import ConcatFull
from cachemark.methods.full import Full
from cachemark.models import var
from cachemark.models.catalogue import next_scale
from cachemark.models.protocol import Loaded, ModelEntry, Request
from cachemark.models.registry import MODELS

from .origin import Origin

assert next_scale  # importing it registers the models
MODEL = "var-d16"
PAIRS = (("reference", "full"), ("full", "ams_kv"))
PARTS = ("adaLN", "attention", "MLP", "head", "sampling", "quantiser", "decoder")


def variants_of(entry: ModelEntry) -> dict[str, tuple[Loaded, Callable[[], Method]]]:
    """Return every variant by name: a loaded model and its method's factory. Both models have equal random weights."""
    eager, published = entry.load(Request()), entry.load(Request(engine="reference"))
    layers = entry.shape(entry.presets["paper"], 1).layers
    demanding = tuple(range(0, layers, 6))
    return {"full": (eager, Full), "reference": (published, ConcatFull), "ams_kv": (eager, lambda: AMSKV(demanding=demanding))}


def ratios(entry: ModelEntry, batch: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of every variant in every round, slot bytes, and the ratios."""
    sampling, labels, seeds = entry.presets["paper"], torch.arange(batch), list(range(batch))
    variants, memories = variants_of(entry), defaultdict(Memory)

    def generate(name: str) -> Tensor:
        loaded, build = variants[name]
        return loaded.generator.generate(labels, seeds, build(), sampling, memories[name])

    tokens = {name: generate(name) for name in variants}  # warm-up
    agree = float((tokens["reference"] == tokens["full"]).float().mean())
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds):
        order = list(variants)[number % len(variants) :] + list(variants)[: number % len(variants)]
        for name in order:
            start = time.perf_counter()
            generate(name)
            seconds[name].append(time.perf_counter() - start)
    by_pair = {f"{a}/{b}": [x / y for x, y in zip(seconds[a], seconds[b], strict=True)] for a, b in PAIRS}
    nbytes = {name: memory.nbytes("slots") for name, memory in memories.items()}
    return {"batch": batch, "rounds": rounds, "agreement with full": agree, "slot bytes": nbytes, "seconds": seconds, "ratios": by_pair}


@dataclass
class Timed(Full):
    """The full cache with a clock around every part of a block."""

    at: int = 0
    spent: dict[tuple[int, str], float] = field(default_factory=lambda: defaultdict(float))

    def stack(self, name: str, step: Step, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        self.at = step.scale
        return super().stack(name, step, tokens, run)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        with self.clock("attention"):
            tokens = block.mix(site, step, tokens, self)
        with self.clock("MLP"):
            return block.join(tokens, block.branch(tokens))

    @contextmanager
    def clock(self, part: str) -> Iterator[None]:
        """Add the time inside this context to ``part`` of the current scale."""
        start = time.perf_counter()
        yield
        self.spent[self.at, part] += time.perf_counter() - start


@contextmanager
def clocked(timed: Timed, owner: Any, name: str, part: str) -> Iterator[None]:
    """Time a function of the model inside this context."""
    plain = getattr(owner, name)

    def watched(*arguments: Any, **options: Any) -> Any:
        with timed.clock(part):
            return plain(*arguments, **options)

    setattr(owner, name, watched)
    try:
        yield
    finally:
        setattr(owner, name, plain)


def profile(entry: ModelEntry, batch: int) -> dict[tuple[int, str], float]:
    """Return the seconds of one generation, after a warm-up, by scale (0: outside of scales) and part."""
    loaded, timed, sampling = entry.load(Request()), Timed(), entry.presets["paper"]
    model: Any = loaded.generator
    labels, seeds, memory = torch.arange(batch), list(range(batch)), Memory()
    model.generate(labels, seeds, Full(), sampling, memory)
    seams = ((model, "modulations", "adaLN"), (model, "logits", "head"), (var, "draw", "sampling"), (var, "guide_scale", "sampling"),
             (model.quantizer, "add", "quantiser"), (model.quantizer, "next_map", "quantiser"))
    with ExitStack() as stack:
        for owner, name, part in seams:
            stack.enter_context(clocked(timed, owner, name, part))
        start = time.perf_counter()
        tokens = model.generate(labels, seeds, timed, sampling, memory)
        whole = time.perf_counter() - start
    timed.at = 0
    with timed.clock("decoder"):
        loaded.decode(tokens)
    timed.spent[0, "other"] = whole - sum(spent for (_, part), spent in timed.spent.items() if part != "decoder")
    return dict(timed.spent)


def print_profile(spent: dict[tuple[int, str], float], grids: tuple[tuple[int, int], ...]) -> None:
    """Print one line per scale in milliseconds, and the sums with their fractions."""
    parts = (*PARTS, "other")
    print(f"{'scale':>10}" + "".join(f"{part:>11}" for part in parts) + f"{'sum':>11}")
    for scale in (*range(1, len(grids) + 1), 0):
        row = [1e3 * spent.get((scale, part), 0.0) for part in parts]
        print(f"{'×'.join(map(str, grids[scale - 1])) if scale else 'outside':>10}" + "".join(f"{ms:11.1f}" for ms in (*row, sum(row))))
    total = sum(spent.values())
    sums = [sum(ms for (_, name), ms in spent.items() if name == part) for part in parts]
    print(f"{'sum':>10}" + "".join(f"{1e3 * s:11.1f}" for s in (*sums, total)))
    print(f"{'share':>10}" + "".join(f"{s / total:11.1%}" for s in (*sums, total)))


def main() -> None:
    """Print the ratios, or the profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--profile", action="store_true", help="where the time of one generation goes")
    parser.add_argument("--json", help="write everything measured to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    origin = Origin(arguments.threads)
    entry: ModelEntry = MODELS.get(MODEL)
    print(origin)
    print(f"{MODEL}, random weights, batch {arguments.batch} + CFG, fp32")
    if arguments.profile:
        print_profile(profile(entry, arguments.batch), entry.shape(entry.presets["paper"], 1).scales)
        return
    result = ratios(entry, arguments.batch, arguments.rounds)
    print(f"agreement of the reference engine's tokens with full's: {result['agreement with full']}")
    print(f"slot bytes: {result['slot bytes']}")
    for name, values in result["ratios"].items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"  time {name}: median {middle:.3f}, quartiles {low:.3f} … {high:.3f}, n = {len(values)}")
    origin.write(arguments.json, result=result)


if __name__ == "__main__":
    main()
