"""Simulate the claims of a report: errors and power of "non-inferior", and the coverage of all intervals.

    python -m studies.claims_study --json studies/claims.json [--only TABLE …]     # without a TABLE, print the stored ones

This computes the tables of docs/results/validation.md in a few minutes on one core. Rules were chosen on other seeds than the default.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.stats import binom

from cachemark.stats.non_inferiority import ALPHA
from tools.pages.gate import markdown
from tools.pages.writing import put

from . import claims_coverage
from .claims_rivals import RULES, Floats, gaffke

BEGIN, END = "<!-- written by studies/claims_study.py -->", "<!-- end of studies/claims_study.py -->"
MARGIN, METHODS, SEEDS = 0.05, 12, (16, 32, 64, 256)
SIZES = {"quick": 0.02, "default": 1.0}
Row = dict[str, Any]
Shares = Mapping[float, float]  # of gains


def color_consistency(full: float, method: float) -> Shares:
    """Return gains of a method whose images match each of the four colors with this probability, independently."""
    own, its = (binom.pmf(range(5), 4, p) for p in (method, full))
    return dict(zip((np.arange(-4, 5) / 4).tolist(), np.convolve(own, its[::-1]).tolist(), strict=True))


def smooth(mean: float, spread: float) -> Shares:
    """Return normal gains on a grid, cut at three standard deviations."""
    z = np.linspace(-3, 3, 13)
    return dict(zip((mean + spread * z).tolist(), (np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()).tolist(), strict=True))


LOSSES: Mapping[str, Shares] = {  # each loses the margin
    "everything, at 5 % of seeds": {-1.0: 0.05, 0.0: 0.95},
    "a quarter, at 20 %": {-0.25: 0.2, 0.0: 0.8},
    "half at 12 %, a quarter gained at 4 %": {-0.5: 0.12, 0.25: 0.04, 0.0: 0.84},
    "a color consistency right in 93 %, the full cache's in 98 %": color_consistency(0.98, 0.93),
    "normal, deviation 0.1": smooth(-MARGIN, 0.1),
}
TRUTHS: Mapping[str, Shares] = {  # none loses so much
    "no difference anywhere": {0.0: 1.0}, "everything, at 1 % of seeds": {-1.0: 0.01, 0.0: 0.99},
    "a quarter lost or gained at 5 % each": {-0.25: 0.05, 0.25: 0.05, 0.0: 0.9}, "both right in 98 %": color_consistency(0.98, 0.98),
    "normal, deviation 0.1": smooth(0.0, 0.1),
}


def drawn(stream: Generator, shares: Shares, n: int, samples: int) -> tuple[Floats, Floats]:
    """Return the values, and how often each of ``samples`` samples of size n has them."""
    values = np.array(list(shares))
    return values, stream.multinomial(n, np.array(list(shares.values())) / sum(shares.values()), size=samples).astype(np.float64)


# -- the claim ----------------------------------------------------------------------------------------------------------
def false_table(size: float, seed: int) -> Iterator[Row]:
    """Count reports with a false "non-inferior", among twelve methods that all lose the margin.

    The rules use the first step of Holm's correction; the bootstrap is not corrected.
    """
    for name, shares in LOSSES.items():
        for n in SEEDS:
            row: Row = {"loss": name, "seeds": n}
            for rule in ("Gaffke (the report)", "Student", "bootstrap (before)"):
                reports = round(size * (400 if rule.startswith("bootstrap") else 4000))
                values, counts = drawn(np.random.default_rng([seed, 1, n, *name.encode()]), shares, n, reports * METHODS)
                row[rule] = float(RULES[rule](values, counts, MARGIN, ALPHA / METHODS).reshape(reports, METHODS).any(1).mean())
            yield row


def power_table(size: float, seed: int) -> Iterator[Row]:
    """Count how often a method that loses less is called non-inferior, among twelve."""
    for name, shares in TRUTHS.items():
        for n in (64, 107, 128, 256, 512):
            row: Row = {"truth": name, "seeds": n}
            for rule, decide in RULES.items():
                samples = round(size * (200 if rule.startswith("bootstrap") else 2000))
                values, counts = drawn(np.random.default_rng([seed, 2, n, *name.encode()]), shares, n, samples)
                row[rule] = float(decide(values, counts, MARGIN, ALPHA / METHODS).mean())
            yield row


def search_table(size: float, seed: int) -> Iterator[Row]:
    """Search random distributions that lose the margin for the highest false rate of the test.

    The worst one is selected on some samples and its rate is counted on others. Distributions have three to five values, since validity is
    proven for two.
    """
    for n in (4, 16, 64, 256):
        for alpha in (ALPHA, ALPHA / METHODS):
            stream, rates = np.random.default_rng([seed, 3, n, round(1 / alpha)]), []
            for _ in range(round(200 * size)):
                shares = losing(stream)
                values, counts = drawn(stream, shares, n, 1000)
                rates.append((float(gaffke(values, counts, MARGIN, alpha).mean()), tuple(shares.items())))
            worst = dict(max(rates)[1])
            again = gaffke(*drawn(stream, worst, n, round(40_000 * size)), MARGIN, alpha)
            yield {"seeds": n, "level": alpha, "distributions": len(rates), "highest rate": float(again.mean())}


def losing(stream: Generator) -> Shares:
    """Return a distribution of three to five gains, a mixture of losses and gains whose mean is the margin."""
    low = np.unique(np.append(-stream.beta(0.7, 0.7, stream.integers(1, 3)) * (1 - MARGIN) - MARGIN, -1.0)[stream.integers(0, 2) :])
    high = stream.uniform(-MARGIN, [0.1, 1.0][stream.integers(0, 2)], stream.integers(1, 4))
    bad, good = stream.dirichlet(np.ones(len(low))), stream.dirichlet(np.ones(len(high)))
    share = (high @ good + MARGIN) / (high @ good - low @ bad)
    return dict(zip([*low.tolist(), *high.tolist()], [*(share * bad).tolist(), *((1 - share) * good).tolist()], strict=True))


# -- all of it ----------------------------------------------------------------------------------------------------------
TABLES = {"false": false_table, "search": search_table, "power": power_table, **claims_coverage.TABLES}


COVERAGE = {"quantity": "quantity", "16 seeds": "16 seeds", "64 seeds": "64 seeds", "reported": "reported at 16, 32, 64"}
BIASES = tuple(f"process bias {percent} %" for percent in range(4))
COLUMNS: Mapping[str, Mapping[str, str]] = {  # of the page, with their headings; the file has more
    "false": {"loss": "loss", "seeds": "seeds", "Gaffke (the report)": "Gaffke (used)", "Student": "Student",
              "bootstrap (before)": "percentile bootstrap"},
    "power": {"truth": "truth", "seeds": "seeds", "Gaffke (the report)": "Gaffke (used)", "betting, mixed": "betting",
              "Student": "Student"},
    "means": COVERAGE, "differences": COVERAGE,
    "times": {name: name for name in ("repeats", "stated", *BIASES, "latency, stated", "latency")},
    "faster": {name: name for name in ("repeats", *BIASES)},
}
PAGE_SEEDS = {"false": (64, 256), "power": (64, 128, 256)}


def text(results: Mapping[str, Any]) -> str:
    """Return the text between the marks of the page."""
    def table(name: str) -> str:
        rows = [row for row in results[name] if name not in PAGE_SEEDS or row["seeds"] in PAGE_SEEDS[name]]
        text = markdown(rows, COLUMNS.get(name, ())).strip("\n")
        return text.replace("1 / 1 / 1", "all")

    highest = {level: max(row["highest rate"] for row in results["search"] if row["level"] == level)
               for level in dict.fromkeys(row["level"] for row in results["search"])}
    search = "; ".join(f"{rate:.3g} at level {level:.3g}" for level, rate in highest.items())
    distributions = sum(row["distributions"] for row in results["search"])
    parts = [f"Seed {results['seed']}, {sum(results['seconds'].values()) / 60:.0f} minutes of one core.",
             "### Reports with a false \"non-inferior\", twelve methods that all lose the margin", table("false"),
             f"Highest false rate over {distributions} random distributions of 4 to 256 seeds: {search}.",
             "### Power of rules for \"non-inferior\", one of twelve methods", table("power"),
             "Anderson, Bentkus, empirical Bernstein and Hoeffding: 0 throughout.",
             "### Coverage of means over seeds, stated 95 %", table("means"),
             "### Coverage of differences over seeds, stated 95 %", table("differences"),
             "### Coverage of times", table("times"),
             "### Equal pairs that are called faster or slower", table("faster"),
             "### Coverage of values of whole sets, stated 95 %", table("sets"),
             "### FID of other real scenes, by the number of images", table("bias"),
             "### Other intervals", table("others")]
    return "\n\n".join(parts)


def write(page: Path, results: Mapping[str, Any]) -> None:
    """Put the tables between the marks of the page."""
    put(page, BEGIN, END, text(results))


def study(only: Sequence[str], size: float, seed: int, results: dict[str, Any]) -> dict[str, Any]:
    """Compute the tables in ``only`` and add them to ``results``."""
    seconds: dict[str, float] = results.get("seconds", {})
    for name in only:
        began = time.perf_counter()
        results[name] = list(TABLES[name](size, seed))
        seconds[name] = round(time.perf_counter() - began, 1)
        print(f"\n## {name}, {seconds[name]:.0f} s\n{markdown(results[name])}", flush=True)
    return {**results, "seconds": seconds, "seed": seed}


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate the claims of a report.")
    parser.add_argument("--quick", action="store_const", const="quick", dest="size", help="seconds: to see that it runs")
    parser.add_argument("--only", nargs="*", choices=TABLES, default=list(TABLES))
    parser.add_argument("--seed", type=int, default=20_000)
    parser.add_argument("--json", type=Path, help="store all values in this file; tables not in --only are taken from it")
    parser.add_argument("--page", type=Path, help="put the tables into this page")
    arguments = parser.parse_args()
    stored = json.loads(arguments.json.read_text(encoding="utf-8")) if arguments.json and arguments.json.is_file() else {}
    results = study(arguments.only, SIZES[arguments.size or "default"], arguments.seed, stored)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if arguments.page:
        write(arguments.page, results)
    if not arguments.only:
        print(text(results))


if __name__ == "__main__":
    main()
