"""Simulate the paired placings of a report: wrong claims and power for rankings of twelve methods.

    python -m studies.placing_study --json studies/placings.json     # with --print, print the stored values

A claim is one pair of methods of which one is said to be better. It is wrong if both are equal or the other one is better in truth.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.stats import t

from cachemark.stats.non_inferiority import ALPHA, holm
from cachemark.stats.placings import chances_of_pairs
from cachemark.stats.sign_flip import Floats
from tools.pages.gate import markdown

METHODS, SEEDS, AT_ONCE = 12, (64, 104, 256, 512, 1024, 2000), 20
REPORTS = 500_000  # times seeds: so many values of each method, in at most MOST reports
MOST = 1000
PAIRS = np.array(list(combinations(range(METHODS), 2)))
USED, STUDENT, UNCORRECTED = "used", "Student, Holm", "Student, each pair at 5 %"
Row = dict[str, Any]
Claimed = NDArray[np.bool_]


@dataclass(frozen=True)
class Truth:
    """A population: ``draw(stream, seeds)`` returns values, (methods, seeds), and ``level`` orders the methods, (methods,)."""

    draw: Callable[[Generator, int], Floats]
    level: Floats
    reach: float = 1.0


def colors(level: Floats, spread: float = 0.0) -> Callable[[Generator, int], Floats]:
    """Draw shares of four colors that match; with ``spread`` some seeds are harder for every method."""
    def draw(stream: Generator, n: int) -> Floats:
        hard = np.clip(1 - spread * stream.standard_exponential(n), 0, 1) if spread else np.ones(n)
        return stream.binomial(4, level[:, None] * hard, size=(METHODS, n)) / 4

    return draw


def rare_or_small(stream: Generator, n: int) -> Floats:
    """Draw methods of equal means: half lose everything at 1 % of seeds, half a quarter at 4 %."""
    lost = stream.random((METHODS, n)) < np.repeat([0.01, 0.04], METHODS // 2)[:, None]
    return 1 - lost * np.repeat([1.0, 0.25], METHODS // 2)[:, None]


def agreement(level: Floats, sigma: Floats) -> Callable[[Generator, int], Floats]:
    """Draw values around ``level`` with these deviations by method, and one as large that all methods of a seed share."""
    return lambda stream, n: level[:, None] + sigma[:, None] * stream.standard_normal((METHODS, n)) + 0.1 * stream.standard_normal(n)


EQUAL, GROUPS = np.full(METHODS, 0.95), np.repeat([1.0, 0.95, 0.9, 0.8], METHODS // 4)
STEPS = 0.99 - 0.02 * np.arange(METHODS, dtype=np.float64)
TRUTHS: Mapping[str, Truth] = {
    "quality: all equal": Truth(colors(EQUAL), EQUAL),
    "quality: all equal, some seeds hard": Truth(colors(EQUAL, 0.1), EQUAL),
    "quality: equal means, rare or small losses": Truth(rare_or_small, EQUAL),
    "quality: four groups, 100, 95, 90, 80 %": Truth(colors(GROUPS), GROUPS),
    "quality: steps of 2 points": Truth(colors(STEPS), STEPS),
    "fidelity: all equal, unequal spreads": Truth(agreement(EQUAL, np.linspace(0.02, 0.2, METHODS, dtype=np.float64)), EQUAL, math.inf),
    "fidelity: steps of 2 points, spread 10": Truth(agreement(STEPS, np.full(METHODS, 0.1)), STEPS, math.inf),
}


def claims(p: Floats, rule: str) -> Claimed:
    """Return which pairs of a report are claimed, (pairs,), from one-sided p-values of the better side."""
    if rule == UNCORRECTED:
        return 2 * p <= ALPHA
    return np.array(holm([*p.tolist(), *[1.0] * len(p)])[: len(p)]) <= ALPHA


def student(apart: Floats) -> Floats:
    """Return the one-sided p-value of the better side of each row of differences, (pairs, seeds)."""
    error = apart.std(axis=1, ddof=1) / math.sqrt(apart.shape[1])
    return np.where(error > 0, t.sf(np.abs(apart.mean(axis=1)) / np.where(error > 0, error, 1), apart.shape[1] - 1), 1.0)


def table(size: float, seed: int) -> Iterator[Row]:
    """Yield one row per population and number of seeds: shares of reports with a wrong claim, and of true differences claimed."""
    for number, (name, truth) in enumerate(TRUTHS.items()):
        higher = np.sign(truth.level[PAIRS[:, 0]] - truth.level[PAIRS[:, 1]])
        for n in SEEDS:
            stream, reports, power, off = np.random.default_rng([seed, number, n]), max(2, round(size * min(MOST, REPORTS / n))), [], []
            wrong = dict.fromkeys((USED, STUDENT, UNCORRECTED), 0)
            for start in range(0, reports, AT_ONCE):
                drawn = [truth.draw(stream, n) for _ in range(min(AT_ONCE, reports - start))]
                apart = np.concatenate([values[PAIRS[:, 0]] - values[PAIRS[:, 1]] for values in drawn])
                (ours, first), rival = chances_of_pairs(apart, truth.reach), student(apart)
                ours_side, rival_side = np.where(first, 1, -1), np.sign(apart.mean(axis=1))
                for k in range(len(drawn)):
                    own = slice(k * len(PAIRS), (k + 1) * len(PAIRS))
                    for rule, p, side in ((USED, ours, ours_side), (STUDENT, rival, rival_side), (UNCORRECTED, rival, rival_side)):
                        claimed = claims(p[own], rule)
                        wrong[rule] += bool((claimed & (side[own] != higher)).any())
                        if rule == USED:
                            power.append(claimed[higher != 0])
                            off.append(_places_off(claimed * side[own], higher))
            yield {"truth": name, "seeds": n, "reports": reports, **{rule: count / reports for rule, count in wrong.items()},
                   "differences claimed": float(np.mean(power)) if (higher != 0).any() else None, "places off": float(np.mean(off))}


def _places_off(claimed: NDArray[Any], higher: NDArray[Any]) -> float:
    """Return the mean distance of a method's placing from its true place; ``claimed`` and ``higher`` are signs, (pairs,)."""
    behind, truly = (np.bincount(np.where(signs > 0, PAIRS[:, 1], PAIRS[:, 0])[signs != 0], minlength=METHODS)
                     for signs in (claimed, higher))
    return float(np.abs(behind - truly).mean())


def text(results: Mapping[str, Any]) -> str:
    """Return the main rows as a table, with machine and commit."""
    rows = [row for row in results["placings"] if row["seeds"] in (64, 104, 256, 512, 2000)]
    worst = max(row[USED] for row in results["placings"])
    reports = sorted({row["reports"] for row in results["placings"]})
    names = {"truth": "truth", "seeds": "seeds", USED: "wrong (used)", STUDENT: f"wrong ({STUDENT})", UNCORRECTED: f"wrong ({UNCORRECTED})",
             "differences claimed": "true differences claimed", "places off": "places off"}
    return (f"Twelve methods, {SEEDS[0]} to {SEEDS[-1]:,} seeds, {reports[0]} to {reports[-1]:,} reports per row, seed {results['seed']}; "
            f"{results['seconds']:.0f} s on {results['machine']}, commit {results['commit']}. "
            f"Highest share of reports with a wrong claim: {100 * worst:.2g} %.\n"
            f"{markdown(rows, names)}".rstrip("\n"))


def main() -> None:
    from cachemark.machine.environment import environment
    from cachemark.plans.reuse import code_identity

    parser = argparse.ArgumentParser(description="Simulate the paired placings of a report.")
    parser.add_argument("--quick", action="store_true", help="seconds: to see that it runs")
    parser.add_argument("--print", action="store_true", dest="stored", help="use the values of --json instead of simulating")
    parser.add_argument("--seed", type=int, default=30_000)
    parser.add_argument("--json", type=Path, help="store all values in this file")
    arguments = parser.parse_args()
    if arguments.stored:
        results = json.loads(arguments.json.read_text(encoding="utf-8"))
    else:
        began, commit = time.perf_counter(), str(code_identity()["commit"])[:10]
        rows = list(table(0.005 if arguments.quick else 1.0, arguments.seed))
        results = {"placings": rows, "seed": arguments.seed, "seconds": round(time.perf_counter() - began),
                   "machine": environment("cpu", 1).device, "commit": commit}
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(text(results))


if __name__ == "__main__":
    main()
