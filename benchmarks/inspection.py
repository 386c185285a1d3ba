"""What the inspection of a plug-in's method costs, in generations of the batch that was timed, as ratios from one process.

One method of each family on the embedded model, as if it were a plug-in's. In every round a generation is timed, and then an inspection;
a figure is the median of their ratios over rounds. An inspection holds seven generations: what lies above seven is the price of looking.

    python benchmarks/inspection.py [--rounds 5] [--threads 1] [--batch 4] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from cachemark.cache.arena import Memory
from cachemark.core.seeds import subset
from cachemark.core.spec import FULL, Budget
from cachemark.kit.inspection import Inspected, inspect
from cachemark.methods.registry import METHODS
from cachemark.models.protocol import ModelEntry, Request
from cachemark.models.registry import MODELS
from cachemark.plans.expand import resolve
from origin import Origin

CASES = (("tiny-llamagen", "streaming"), ("tiny-t2i", "rkv"), ("tiny-var", "window"), ("tiny-mar", "marche"))
BUDGET, UNSEEN = "1/2", 10_000_000  # seeds from this one on are in no subset


def inspected(model: str, name: str, batch: int) -> Inspected:
    """The case that a trial would inspect: a method at a half of the full cache, in the masked family at its own sizes."""
    entry: ModelEntry = MODELS.get(model)
    cls, sampling = METHODS.get(name), entry.presets["paper"]
    knobs = {} if entry.paradigm == "masked" else resolve(cls, Budget.parse(BUDGET), entry.shape(sampling, batch), {})
    asked = subset("s64", entry.classes).first(batch)
    return Inspected(entry.load(Request()), lambda: cls.build(knobs), METHODS.get(FULL), Memory, sampling, asked.labels,
                     asked.seeds, range(UNSEEN, UNSEEN + batch))


def measure(case: Inspected, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of the generation and of the inspection in every round, behind one of each."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for counted in [False, *[True] * rounds]:
        began = time.perf_counter()
        with torch.inference_mode():
            case.generate(case.method(), case.memory(), case.seeds)
        middle = time.perf_counter()
        if flaws := inspect(case):
            raise SystemExit(f"An honest method is flagged: {flaws}")
        if counted:
            seconds[0].append(middle - began)
            seconds[1].append(time.perf_counter() - middle)
    return seconds


def line(model: str, name: str, ratios: Sequence[float]) -> str:
    """The figure of a case with its quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{model}, {name}: {middle:.1f} generations, quartiles {low:.1f} … {high:.1f}"


def main() -> None:
    """Measure every case and print its figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--json", help="write everything measured to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    origin = Origin(arguments.threads)
    print(origin)
    results: list[dict[str, Any]] = []
    for model, name in CASES:
        once, whole = measure(inspected(model, name, arguments.batch), arguments.rounds)
        results.append({"model": model, "method": name, "batch": arguments.batch, "generation": once, "inspection": whole})
        print(line(model, name, [looked / plain for plain, looked in zip(once, whole, strict=True)]))
    origin.write(arguments.json, results=results)


if __name__ == "__main__":
    main()
